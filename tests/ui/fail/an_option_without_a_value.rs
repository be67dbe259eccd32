//! An option without a value.
// error: `ttl` has no value: write `ttl = "10s"`
// at: ttl

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", ttl)]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
