//! The option manager means locks.
// error: there is no option `manager`: did you mean `locks`?
// at: manager

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", manager = "10s")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
