//! The option lock at most for means max hold.
// error: there is no option `lock_at_most_for`: did you mean `max_hold`?
// at: lock_at_most_for

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", lock_at_most_for = "10s")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
