//! A template with a number.
// error: values have names, not numbers
// at: "order:{0}"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order:{0}")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
