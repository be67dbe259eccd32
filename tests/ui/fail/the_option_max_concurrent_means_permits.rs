//! The option max concurrent means permits.
// error: there is no option `max_concurrent`: did you mean `permits`?
// at: max_concurrent

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", max_concurrent = 3)]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
