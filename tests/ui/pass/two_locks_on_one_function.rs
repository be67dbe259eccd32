//! Two locks on one function; each uses arguments that nothing else uses.
#![forbid(warnings)]

use lock_core::{LockError, distributed_lock};

/// Both.
///
/// # Errors
///
/// If one of the locks is busy.
#[distributed_lock(key = "a:{a}")]
#[distributed_lock(key = "b:{b}:{c}", wait = "1s")]
pub async fn both(a: u64, b: u64, mut c: String) -> Result<String, LockError> {
    c.push('c');
    Ok(c)
}

/// An expression.
///
/// # Errors
///
/// If one of the locks is busy.
#[distributed_lock(key = "a")]
#[distributed_lock(key = format!("{b}"))]
pub async fn expression(b: u64) -> Result<(), LockError> {
    Ok(())
}
