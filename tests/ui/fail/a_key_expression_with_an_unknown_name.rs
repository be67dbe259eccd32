//! A key expression with an unknown name.
// error: cannot find value `other`
// at: other

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = other)]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
