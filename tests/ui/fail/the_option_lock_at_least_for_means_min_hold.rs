//! The option lock at least for means min hold.
// error: there is no option `lock_at_least_for`: did you mean `min_hold`?
// at: lock_at_least_for

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", lock_at_least_for = "10s")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
