//! A lease named like an argument.
// error: `name` is already an argument of this function
// at: name

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", lease = name)]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
