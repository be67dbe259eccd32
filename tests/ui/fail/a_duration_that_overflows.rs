//! A duration that overflows.
// error: it is too long
// at: "99999999999999999999h"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", ttl = "99999999999999999999h")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
