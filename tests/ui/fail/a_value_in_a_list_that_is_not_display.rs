//! A value in a list that is not display.
// error: `Option<u64>` cannot be part of a lock key
// at: "order:{order_id}"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = ["name:{name}", "order:{order_id}"])]
async fn f(order_id: Option<u64>, name: String) -> Result<u64, LockError> {
    Ok(order_id.unwrap_or(0) + name.len() as u64)
}
