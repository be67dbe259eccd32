//! An unknown name in the key.
// error: no parameter is called `oder_id`: did you mean `order_id`?
// at: "order:{oder_id}"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order:{oder_id}")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
