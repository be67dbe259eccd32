//! A template with an empty value.
// error: an empty `{}` names no value
// at: "order:{}"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order:{}")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
