//! The option read means mode.
// error: there is no option `read`: write `mode = shared`
// at: read

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", read = 3)]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
