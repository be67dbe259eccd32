//! Nested functions.

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "outer:{n}")]
async fn outer(n: u64) -> Result<u64, LockError> {
    const STEP: u64 = 2;
    #[distributed_lock(key = "inner:{n}")]
    async fn inner(n: u64) -> Result<u64, LockError> {
        fn innermost(n: u64) -> u64 {
            n + STEP
        }
        Ok(innermost(n))
    }
    inner(n).await
}
