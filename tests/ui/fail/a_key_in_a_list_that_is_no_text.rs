//! A key expression in a list that is no text.
// error: `u64` is not a lock key
// at: order_id

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = ["name:{name}", order_id])]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
