//! Async trait without send.

use lock_core::{LockError, distributed_lock};

use async_trait::async_trait;
use std::rc::Rc;

struct Memory {
    id: Rc<u64>,
}

#[async_trait(?Send)]
trait Store {
    async fn load(&self, id: u64) -> Result<Rc<u64>, LockError>;
}

#[async_trait(?Send)]
impl Store for Memory {
    #[distributed_lock(key = "store:{id}:{self.id}")]
    async fn load(&self, id: u64) -> Result<Rc<u64>, LockError> {
        let shared = Rc::clone(&self.id);
        tokio::task::yield_now().await;
        if id > 3 {
            return Ok(shared);
        }
        Ok(Rc::clone(&self.id))
    }
}
