//! A duration of days.
// error: unknown unit `d`
// at: "1d"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", max_hold = "1d")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
