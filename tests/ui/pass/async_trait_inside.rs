//! Async trait inside.

use lock_core::{LockError, distributed_lock};

use async_trait::async_trait;

#[distributed_lock(key = "outer")]
async fn outer() -> Result<u64, LockError> {
    struct Local;
    #[async_trait]
    trait Store {
        async fn load(&self, id: u64) -> u64;
    }
    #[async_trait]
    impl Store for Local {
        async fn load(&self, id: u64) -> u64 {
            id
        }
    }
    Ok(Local.load(1).await)
}
