//! A template with a literal.
// error: a literal needs no braces
// at: "order:{'x'}"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order:{'x'}")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
