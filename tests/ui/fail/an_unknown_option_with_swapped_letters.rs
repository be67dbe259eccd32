//! An unknown option with swapped letters.
// error: unknown option `lcoks`: did you mean `locks`?
// at: lcoks

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", lcoks = x)]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
