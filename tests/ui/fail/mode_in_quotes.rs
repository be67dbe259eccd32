//! Mode in quotes.
// error: `mode` must be `exclusive`, the default, or `shared`, without quotes: write `shared`
// at: "shared"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", mode = "shared")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
