//! Permits beside mode.
// error: `mode` and `permits` exclude each other: write
// at: mode

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", permits = 3, mode = shared)]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
