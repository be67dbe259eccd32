//! A fn pointer and a trait bound on the function item.

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "n:{n}")]
async fn handler(n: u64) -> Result<u64, LockError> {
    Ok(n)
}
async fn call<F: AsyncFn(u64) -> Result<u64, LockError>>(f: F) -> Result<u64, LockError> {
    f(1).await
}
async fn use_it() -> Result<u64, LockError> {
    call(handler).await
}
