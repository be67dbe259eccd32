//! A key that is a list.
// error: several keys are not supported: write one, or stack two attributes
// at: ["a", "b"]

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = ["a", "b"])]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
