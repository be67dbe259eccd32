//! The option lease time means ttl.
// error: there is no option `lease_time`: did you mean `ttl`?
// at: lease_time

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", lease_time = "10s")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
