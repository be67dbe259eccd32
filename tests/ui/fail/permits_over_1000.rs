//! Permits over 1000.
// error: it is too large, and must be at most 1000
// at: 1001

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", permits = 1001)]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
