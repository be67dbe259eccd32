//! A key that is a number.
// error: a key must be text
// at: 5

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = 5)]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
