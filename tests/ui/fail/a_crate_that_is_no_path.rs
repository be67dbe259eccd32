//! A crate that is no path.
// error: expected identifier
// at: "lock_core"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", crate = "lock_core")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
