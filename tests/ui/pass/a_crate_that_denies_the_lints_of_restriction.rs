//! A crate that denies clippy's restriction lints, which its own code obeys.
#![deny(clippy::restriction)]
#![allow(
    clippy::blanket_clippy_restriction_lints,
    clippy::missing_docs_in_private_items,
    clippy::needless_return,
    reason = "the lints contradict each other"
)]

use lock_core::{LockError, distributed_lock, run_once};

/// An extractor.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Path<T>(pub T);

/// Sells an item.
///
/// # Errors
///
/// If the lock fails.
#[distributed_lock(key = "item:{item}", permits = 3, ttl = "10s", wait = "1s")]
#[inline]
pub async fn sell(item: u64, mut text: String, _unused: u8) -> Result<String, LockError> {
    text.push('x');
    return Ok(text);
}

/// Sells a pair of items.
///
/// # Errors
///
/// If the lock fails.
#[distributed_lock(
    key = ["item:{item}", "pair"],
    mode = [shared, exclusive],
    lease = lease,
    on_error = |error| { return Err(format!("{item}: {error}")); }
)]
#[inline]
pub async fn sell_pair(Path(item): Path<u64>) -> Result<String, String> {
    return Ok(lease.fencing_token().to_string());
}

/// Charges once.
///
/// # Errors
///
/// If the lock fails.
#[run_once(key = "charge:{item}", keep = "1h", fingerprint = text)]
#[inline]
pub async fn charge(item: u64, text: String) -> Result<String, LockError> {
    return Ok(text);
}
