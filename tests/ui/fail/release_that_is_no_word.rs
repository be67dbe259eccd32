//! Release that is no word.
// error: `release` must be `awaited`, the default, or `background`, without quotes
// at: "background"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", release = "background")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
