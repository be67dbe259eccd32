//! A template with a pointer.
// error: an address differs in every process
// at: "order:{name:p}"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order:{name:p}")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
