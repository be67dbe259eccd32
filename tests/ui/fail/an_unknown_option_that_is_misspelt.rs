//! An unknown option that is misspelt.
// error: unknown option `tll`: did you mean `ttl`?
// at: tll

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", tll = "10s")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
