//! An empty key.
// error: the key is empty: name what is locked
// at: ""

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
