//! The option slots means permits.
// error: there is no option `slots`: did you mean `permits`?
// at: slots

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", slots = 3)]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
