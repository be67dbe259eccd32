//! The option concurrency means permits.
// error: there is no option `concurrency`: did you mean `permits`?
// at: concurrency

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", concurrency = 3)]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
