//! A template with a question mark.
// error: `?` cannot be used in a key
// at: "order:{name.parse()?}"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order:{name.parse()?}")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
