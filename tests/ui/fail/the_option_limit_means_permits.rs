//! The option limit means permits.
// error: there is no option `limit`: did you mean `permits`?
// at: limit

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", limit = 3)]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
