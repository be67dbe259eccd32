//! Permits that are negative.
// error: it is negative, but must be at least 1
// at: -3

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", permits = -3)]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
