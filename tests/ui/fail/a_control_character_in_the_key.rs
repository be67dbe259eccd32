//! A control character in the key.
// error: a key must not contain control characters, but this is '\n'
// at: "order\n{order_id}"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order\n{order_id}")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
