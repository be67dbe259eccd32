//! A lease that is no name.
// error: `lease` takes the name of the lease in the body
// at: "lease"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", lease = "lease")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
