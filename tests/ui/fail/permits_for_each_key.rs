//! Permits for each key.
// error: all keys of a list have the same number: write it once
// at: [1, 2]

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = ["a:{order_id}", "b:{name}"], permits = [1, 2])]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
