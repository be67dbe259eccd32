//! A duration that is a fraction.
// error: `wait` is not a usable duration: write a text with a unit
// at: 1.5

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", wait = 1.5)]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
