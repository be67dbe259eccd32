//! A list without keys.
// error: the list has no keys
// at: []

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = [])]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
