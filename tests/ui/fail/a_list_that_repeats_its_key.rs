//! A list that repeats its key.
// error: a list names its keys one by one
// at: ["a:{name}"; 2]

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = ["a:{name}"; 2])]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
