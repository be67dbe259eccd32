//! An option that is no name.
// error: options have names
// at: 5

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", 5 = 3)]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }
