//! A template with an operator.
// error: an operator cannot be used in a key template
// at: "order:{order_id + 1}"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order:{order_id + 1}")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
