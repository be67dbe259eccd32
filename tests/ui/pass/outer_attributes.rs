//! Visibility, documentation, and attributes that stay on the function.

use lock_core::{LockError, distributed_lock};

/// Charges.
///
/// # Errors
///
/// If the lock is busy.
#[inline]
#[distributed_lock(key = "n:{n}")]
pub async fn f(/* a comment */ n: u64) -> Result<u64, LockError> {
    Ok(n)
}

/// A service.
pub struct Service;

impl Service {
    /// Charges.
    ///
    /// # Errors
    ///
    /// If the lock is busy.
    #[distributed_lock(key = "n:{n}")]
    #[deprecated(since = "1.0.0", note = "no reason")]
    pub async fn f(&self, n: u64) -> Result<u64, LockError> {
        Ok(n)
    }
}
