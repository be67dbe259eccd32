//! A crate that forbids the lints about names with an underscore, with other attributes that read such arguments.
#![forbid(
    clippy::used_underscore_binding,
    clippy::no_effect_underscore_binding
)]

use lock_core::{LockError, distributed_lock};
use tracing::instrument;

/// Has the other attribute below.
///
/// # Errors
///
/// If it is busy.
#[distributed_lock(key = "n:{n}")]
#[instrument]
pub async fn below(n: u64, _other: u8) -> Result<u64, LockError> {
    Ok(n)
}

/// Has the other attribute above.
///
/// # Errors
///
/// If it is busy.
#[instrument(skip_all)]
#[distributed_lock(key = "n:{n}")]
pub async fn above(n: u64, _other: u8) -> Result<u64, LockError> {
    Ok(n)
}
