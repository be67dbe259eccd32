//! Modes for one key.
// error: there is one key, but a list of modes: write `mode = shared`, without brackets
// at: [shared]

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", mode = [shared])]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
