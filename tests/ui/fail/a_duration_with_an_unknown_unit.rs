//! A duration with an unknown unit.
// error: unknown unit `sec`: use `h`, `m`, `s` or `ms`
// at: "10 sec"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", wait = "10 sec")]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
