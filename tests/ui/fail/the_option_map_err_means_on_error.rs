//! The option map err means on error.
// error: there is no option `map_err`: did you mean `on_error`?
// at: map_err

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", map_err = "10s")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
