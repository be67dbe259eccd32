//! The option name means key.
// error: there is no option `name`: did you mean `key`?
// at: name

use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "order")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
