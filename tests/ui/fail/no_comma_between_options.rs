//! No comma between options.
// error: expected a comma before the next option
// at: ttl

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order" ttl = "1s")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }
