//! On busy that is no word.
// error: `on_busy` must be `error`, the default, or `skip`
// at: wait

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", on_busy = wait)]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
