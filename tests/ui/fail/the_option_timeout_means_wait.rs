//! The option timeout means wait.
// error: there is no option `timeout`: did you mean `wait`?
// at: timeout

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", timeout = "10s")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
