//! Options without a key.
// error: missing `key`: name what is locked
// at: #[distributed_lock(ttl = "10s")]

use lock_core::{LockError, distributed_lock};

#[distributed_lock(ttl = "10s")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
