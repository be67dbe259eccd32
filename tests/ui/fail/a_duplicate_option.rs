//! A duplicate option.
// error: `ttl` is given twice: leave one out
// at: ttl

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", ttl = "1s", ttl = "2s")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
