//! Permits of zero.
// error: `permits` is not a usable number: it is zero, but must be at least 1
// at: 0

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", permits = 0)]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
