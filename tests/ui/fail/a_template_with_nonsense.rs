//! A template with nonsense.
// error: `name name` is not a value
// at: "order:{name name}"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order:{name name}")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
