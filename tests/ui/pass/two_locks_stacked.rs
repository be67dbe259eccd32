//! Two locks stacked.

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "account:{from}", lease = first)]
#[distributed_lock(key = "account:{to}", lease = second)]
async fn transfer(from: u64, to: u64, mut amount: u64) -> Result<u64, LockError> {
    amount += u64::from(first.fencing_token()) + u64::from(second.fencing_token());
    Ok(from + to + amount)
}

#[distributed_lock(key = "account:{a}")]
#[distributed_lock(key = "account:{b}")]
async fn extractors((a, b): (u64, u64)) -> Result<u64, LockError> {
    Ok(a + b)
}
