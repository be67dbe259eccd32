//! The option rw means mode.
// error: there is no option `rw`: did you mean `mode`?
// at: rw

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", rw = 3)]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
