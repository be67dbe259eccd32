//! A list in a list of keys.
// error: write all keys in one
// at: ["b", "c"]

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = ["a:{name}", ["b", "c"]])]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
