//! An unknown option that resembles none.
// error: unknown option `colour`: the options are `key`, `ttl`, `wait`, `mode`, `permits`, `renew`
// at: colour

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", colour = 1)]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
