//! The option watchdog means renew.
// error: there is no option `watchdog`: did you mean `renew`?
// at: watchdog

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", watchdog = "10s")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
