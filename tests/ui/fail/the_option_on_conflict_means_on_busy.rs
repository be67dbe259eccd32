//! The option on conflict means on busy.
// error: there is no option `on_conflict`: did you mean `on_busy`?
// at: on_conflict

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", on_conflict = "10s")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
