//! Permits that are a fraction.
// error: write a number from 1 to 1000, as in `permits = 3`
// at: 1.5

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", permits = 1.5)]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
