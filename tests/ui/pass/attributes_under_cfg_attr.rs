//! Attributes under cfg attr.

use lock_core::{LockError, distributed_lock};

#[cfg_attr(not(any()), distributed_lock(key = "n:{n}"))]
async fn on(n: u64) -> Result<u64, LockError> {
    Ok(n)
}

#[cfg_attr(any(), distributed_lock(key = "n:{n}"))]
async fn off(n: u64) -> Result<u64, LockError> {
    tokio::task::yield_now().await;
    Ok(n)
}
