//! A duration without a unit.
// error: `ttl` is not a usable duration: `10` has no unit: write `"10s"`
// at: "10"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", ttl = "10")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
