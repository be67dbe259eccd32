//! A duration over 24 h.
// error: it is too long, and must be at most `"24h"`
// at: "24h1ms"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", ttl = "24h1ms")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
