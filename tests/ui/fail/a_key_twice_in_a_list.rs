//! A key twice in a list.
// error: this key is already in the list
// at: "name:{name}"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = ["name:{name}", "order:{order_id}", "name:{name}"])]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
