//! On error that is no function.
// error: expected a `FnOnce(LockError)` closure, found
// at: 5

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", on_error = 5)]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
