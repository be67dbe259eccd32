//! A crate that forbids every warning.
#![forbid(warnings, unused, unexpected_cfgs, clippy::all, clippy::pedantic)]

use lock_core::{LockError, distributed_lock};

/// Has a lease, and an argument that nothing uses.
///
/// # Errors
///
/// If it is busy.
#[distributed_lock(key = "n:{n}", lease = lease)]
pub async fn f(n: u64, _other: u8) -> Result<u64, LockError> {
    let _ = lease;
    Ok(n)
}

/// Has no value.
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

/// Has two locks, each with arguments that nothing else uses.
///
/// # Errors
///
/// If one of the locks is busy.
#[distributed_lock(key = "a:{a}", lease = first)]
#[distributed_lock(key = "b:{b}:{c}", wait = "1s", lease = second)]
pub async fn both(a: u64, b: u64, mut c: String) -> Result<String, LockError> {
    c.push_str(&(first.fencing_token().get() + second.fencing_token().get()).to_string());
    Ok(c)
}

/// Has two locks that take one argument apart.
///
/// # Errors
///
/// If one of the locks is busy.
#[distributed_lock(key = "account:{a}")]
#[distributed_lock(key = format!("account:{b}"))]
pub async fn destructured((a, b): (u64, u64)) -> Result<u64, LockError> {
    Ok(a + b)
}
