//! Locks that is no manager.
// error: `String` is not a lock manager
// at: name

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", locks = name)]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
