//! A least hold that is longer than the longest one.
// error: min_hold (60s) is longer than max_hold (10s): swap them, or leave one out
// at: "1m"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", min_hold = "1m", max_hold = "10s")]
async fn f() -> Result<(), LockError> {
    Ok(())
}
