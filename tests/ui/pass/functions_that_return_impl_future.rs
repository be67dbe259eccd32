//! Functions that return impl future.

use lock_core::{LockError, distributed_lock};

use std::future::Future;

struct Api {
    id: u64,
}

#[distributed_lock(key = "order:{id}")]
#[allow(clippy::manual_async_fn)]
fn visible(id: u64) -> impl Future<Output = Result<u64, LockError>> + Send {
    async move {
        if id > 2 {
            return Ok(1);
        }
        Ok(id)
    }
}

#[distributed_lock(key = "order:{id}", on_error = |_| 0)]
fn after_statements(id: &u64) -> impl Future<Output = u64> {
    let doubled = *id * 2;
    async move {
        let mut sum = doubled;
        sum += *id;
        sum
    }
}

impl Api {
    #[distributed_lock(key = "order:{self.id}")]
    #[allow(clippy::manual_async_fn)]
    fn method(&self) -> impl Future<Output = Result<u64, LockError>> {
        async {
            tokio::task::yield_now().await;
            Ok(self.id)
        }
    }
}

trait Load {
    fn load(&self, id: u64) -> impl Future<Output = Result<u64, LockError>> + Send;
}

impl Load for Api {
    #[allow(clippy::manual_async_fn)]
    #[distributed_lock(key = "order:{id}:{self.id}")]
    fn load(&self, id: u64) -> impl Future<Output = Result<u64, LockError>> + Send {
        async move { Ok(id + self.id) }
    }
}
