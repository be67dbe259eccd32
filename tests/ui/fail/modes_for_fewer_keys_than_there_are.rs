//! Modes for fewer keys than there are.
// error: the list of modes has length 2, but that of the keys has length 3: write one mode for each key
// at: [shared, exclusive]

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = ["a:{order_id}", "b:{name}", "c"], mode = [shared, exclusive])]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
