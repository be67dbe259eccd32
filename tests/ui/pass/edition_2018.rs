//! Edition 2018.
// edition: 2018

use lock_core::{distributed_lock, LockError};

#[distributed_lock(key = "n:{n}", lease = lease)]
async fn f(n: u64) -> Result<Box<dyn std::fmt::Debug>, LockError> {
    if n > 1 {
        return Ok(Box::new(lease));
    }
    Ok(Box::new(n))
}
