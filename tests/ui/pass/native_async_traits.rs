//! Native async traits.

use lock_core::{LockError, distributed_lock};

#[allow(async_fn_in_trait)]
trait Store {
    type Item: Default;
    async fn load(&self, id: u64) -> Result<Self::Item, LockError>;
    #[distributed_lock(key = "store:{id}")]
    async fn save(&mut self, id: u64) -> Result<Self::Item, LockError> {
        self.load(id).await
    }
}

struct Memory;

impl Store for Memory {
    type Item = String;
    #[distributed_lock(key = "store:{id}")]
    async fn load(&self, id: u64) -> Result<Self::Item, LockError> {
        Ok(id.to_string())
    }
}
