//! On error of another type.
// error: mismatched types
// at: error.to_string()

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", on_error = |error| error.to_string())]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
