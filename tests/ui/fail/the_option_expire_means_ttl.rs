//! The option expire means ttl.
// error: there is no option `expire`: did you mean `ttl`?
// at: expire

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", expire = "10s")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
