//! A template with a closure.
// error: more than a parameter, a path, a field, an index or a call cannot be used
// at: "order:{|| 1}"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order:{|| 1}")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
