//! Mode that is no word.
// error: `mode` must be `exclusive`, the default, or `shared`, without quotes
// at: turbo

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", mode = turbo)]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
