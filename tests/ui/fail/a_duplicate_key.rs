//! A duplicate key.
// error: `key` is given twice
// at: key

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", key = "other")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
