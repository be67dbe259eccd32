//! A crate that forbids the lints about names with an underscore, with such arguments and attributes that read them.
#![forbid(
    clippy::used_underscore_binding,
    clippy::no_effect_underscore_binding
)]

use lock_core::{LockError, distributed_lock};
use tracing::instrument;

/// Below.
///
/// # Errors
///
/// If it is busy.
#[distributed_lock(key = "n:{n}")]
#[instrument]
pub async fn below(n: u64, _other: u8) -> Result<u64, LockError> {
    Ok(n)
}

/// Above.
///
/// # Errors
///
/// If it is busy.
#[instrument(skip_all)]
#[distributed_lock(key = "n:{n}")]
pub async fn above(n: u64, _other: u8) -> Result<u64, LockError> {
    Ok(n)
}
