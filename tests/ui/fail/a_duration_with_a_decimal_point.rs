//! A duration with a decimal point.
// error: instead of a fraction, use a smaller unit
// at: "1.5s"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", ttl = "1.5s")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
