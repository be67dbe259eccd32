//! The option shared means mode.
// error: there is no option `shared`: did you mean `mode`?
// at: shared

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", shared = 3)]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
