//! A wait under 100 ms.
// error: it is too short, and must be at least
// at: "5ms"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", wait = "5ms")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
