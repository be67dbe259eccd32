//! Only letters between two values.
// error: only `x1` separates two values
// at: "order:{order_id}x1{name}"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order:{order_id}x1{name}")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
