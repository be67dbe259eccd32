//! A duration of another type.
// error: mismatched types
// at: 5 + 5

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", ttl = 5 + 5)]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
