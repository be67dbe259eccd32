//! A template with a macro.
// error: a macro cannot be used in a key template
// at: "order:{line!()}"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order:{line!()}")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
