//! The option guard means lease.
// error: there is no option `guard`: did you mean `lease`?
// at: guard

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", guard = "10s")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
