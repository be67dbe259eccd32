//! Self where there is none.
// error: no parameter is called `self`
// at: "order:{self.id}"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order:{self.id}")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
