//! Modes before more keys.
// error: the list of modes has length 1
// at: [shared]

use lock_core::{LockError, distributed_lock};

#[distributed_lock(mode = [shared], key = ["a:{order_id}", "b:{name}"])]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
