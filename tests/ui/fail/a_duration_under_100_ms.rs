//! A duration under 100 ms.
// error: it is too short, and must be at least `"100ms"`
// at: "99ms"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", min_hold = "99ms")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
