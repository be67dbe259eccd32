//! No options at all.
// error: missing `key`: name what is locked
// at: #[distributed_lock()]

use lock_core::{LockError, distributed_lock};

#[distributed_lock()]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
