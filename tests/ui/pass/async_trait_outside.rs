//! Async trait outside.

use lock_core::{LockError, distributed_lock};

use async_trait::async_trait;

struct Path<T>(T);
struct Memory {
    id: u64,
    locks: lock_core::LockManager,
}

#[async_trait]
trait Store {
    async fn load(&self, id: u64) -> Result<String, LockError>;
    #[distributed_lock(key = "store:{id}")]
    async fn twice(&self, id: u64) -> Result<String, LockError>
    where
        Self: Sync,
    {
        self.load(id).await
    }
    async fn change(&mut self, path: Path<u64>) -> Result<&str, LockError>;
    async fn consume(self: Box<Self>) -> Result<u64, LockError>;
}

#[async_trait]
impl Store for Memory {
    #[distributed_lock(key = "store:{id}:{self.id}", locks = self.locks)]
    async fn load(&self, id: u64) -> Result<String, LockError> {
        if id > 3 {
            return Ok(String::new());
        }
        Ok(format!("{id}{}", self.id))
    }
    #[distributed_lock(key = "store:{id}:{self.id}", locks = self.locks, lease = lease)]
    async fn change(&mut self, Path(mut id): Path<u64>) -> Result<&str, LockError> {
        id += 1;
        self.id = id + u64::from(lease.fencing_token());
        Ok("x")
    }
    #[distributed_lock(key = "store:{self.id}")]
    async fn consume(self: Box<Self>) -> Result<u64, LockError> {
        Ok(self.id)
    }
}
