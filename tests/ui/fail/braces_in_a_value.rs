//! Braces in a value.
// error: this `{` is never closed
// at: "order:{ {order_id} }"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order:{ {order_id} }")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
