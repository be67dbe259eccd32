//! Mode beside permits.
// error: `permits` and `mode` exclude each other: write
// at: permits

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", mode = shared, permits = 3)]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
