//! The option semaphore means permits.
// error: unknown option `semaphore`: did you mean `permits`?
// at: semaphore

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", semaphore = 3)]
async fn f(order_id: u64, name: String) -> Result<u64, LockError> {
    Ok(order_id + name.len() as u64)
}
