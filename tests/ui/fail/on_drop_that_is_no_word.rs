//! On drop that is no word.
// error: `on_drop` must be `finish`, the default, or `cancel`, without quotes
// at: other
// error: `on_drop` must be `cancel`, the default, or `finish`, without quotes
// at: "finish"
use lock_core::{LockError, distributed_lock, run_once};

#[run_once(key = "k", keep = "1h", on_drop = other)]
pub async fn run() -> Result<u8, LockError> {
    Ok(1)
}

#[distributed_lock(key = "k", on_drop = "finish")]
pub async fn lock() -> Result<u8, LockError> {
    Ok(1)
}
