//! Renew that is no word.
// error: `renew` must be `true`, the default, or `false`, without quotes
// at: "no"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", renew = "no")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
