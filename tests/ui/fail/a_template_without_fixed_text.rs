//! A template without fixed text.
// error: the key has no fixed text
// at: "{order_id}"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "{order_id}")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
