//! On lost that is no word.
// error: `on_lost` must be `cancel`, the default, or `continue`
// at: "cancel"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", on_lost = "cancel")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
