//! A template with a dereference.
// error: an operator cannot be used in a key template
// at: "order:{*name}"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order:{*name}")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
