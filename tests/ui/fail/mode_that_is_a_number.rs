//! Mode that is a number.
// error: `mode` must be `exclusive`, the default, or `shared`, without quotes; to limit the number of holders, write `permits = 3` instead
// at: 3

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", mode = 3)]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
