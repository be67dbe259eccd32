//! Permits beyond all integers.
// error: it is too large, and must be at most 1000
// at: 99999999999999999999999

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", permits = 99999999999999999999999)]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
