//! An unknown name in a field.
// error: no parameter is called `ordr`
// at: "order:{ordr.id}"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order:{ordr.id}")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
