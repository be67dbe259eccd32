//! Only a percent sign between two values.
// error: only `%` separates two values
// at: "order:{order_id}%{name}"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order:{order_id}%{name}")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
