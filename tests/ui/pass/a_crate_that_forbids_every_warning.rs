//! A crate that forbids every warning.
#![forbid(warnings, unused, unexpected_cfgs, clippy::all, clippy::pedantic)]

use lock_core::{LockError, distributed_lock};

/// Locks.
///
/// # Errors
///
/// If it is busy.
#[distributed_lock(key = "n:{n}", lease = lease)]
pub async fn f(n: u64, _other: u8) -> Result<u64, LockError> {
    let _ = lease;
    Ok(n)
}
/// Locks for ever.
///
/// # Panics
///
/// If it is busy.
#[distributed_lock(key = "n:{n}", on_error = |_| panic!())]
pub async fn g(n: u64) -> std::convert::Infallible {
    loop {
        tokio::task::yield_now().await;
    }
}
