//! A template with a width argument.
// error: a width or precision in a key must be a plain number
// at: "order:{name:1$}"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order:{name:1$}")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
