//! A key in a list that is a number.
// error: a key must be text
// at: 42

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = ["name:{name}", 42])]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
