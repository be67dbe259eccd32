//! An unknown name that resembles none.
// error: no parameter is called `customer`: the function has `order_id`, `name`
// at: "order:{customer}"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order:{customer}")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
