//! A duration of zero.
// error: it is zero, but must be at least `"100ms"`
// at: "0s"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", ttl = "0s")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
