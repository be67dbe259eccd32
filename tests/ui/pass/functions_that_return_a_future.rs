//! Functions that are not `async`, and return the future of an `async` block.

use std::{future::Future, pin::Pin};

use futures_util::{
    FutureExt,
    future::{BoxFuture, LocalBoxFuture},
};
use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order:{id}", on_error = |_| 0)]
fn after_statements(id: &u64) -> impl Future<Output = u64> {
    let doubled = *id * 2;
    async move {
        let mut sum = doubled;
        sum += *id;
        sum
    }
}

trait Load {
    fn load(&self, id: u64) -> impl Future<Output = Result<u64, LockError>> + Send;
}

struct Api {
    id: u64,
}

impl Api {
    #[distributed_lock(key = "order:{self.id}")]
    #[allow(clippy::manual_async_fn)]
    fn that_borrows_self(&self) -> impl Future<Output = Result<u64, LockError>> {
        async {
            tokio::task::yield_now().await;
            Ok(self.id)
        }
    }
}

impl Load for Api {
    #[allow(clippy::manual_async_fn)]
    #[distributed_lock(key = "order:{id}:{self.id}")]
    fn load(&self, id: u64) -> impl Future<Output = Result<u64, LockError>> + Send {
        async move { Ok(id + self.id) }
    }
}

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

#[distributed_lock(key = "order:{id}")]
fn pinned(id: u64) -> Boxed<Result<u64, LockError>> {
    Box::pin(async move {
        if id > 2 {
            return Ok(1);
        }
        Ok(1 + pinned(id + 1).await?)
    })
}

#[distributed_lock(key = "order:{id}")]
fn boxed(id: &u64) -> BoxFuture<'_, Result<Box<dyn std::fmt::Debug + Send>, LockError>> {
    async move {
        if *id > 2 {
            return Ok(Box::new(1) as Box<dyn std::fmt::Debug + Send>);
        }
        Ok(Box::new(*id))
    }
    .boxed()
}

#[distributed_lock(key = "order:{id}")]
fn boxed_local(id: std::rc::Rc<u64>) -> LocalBoxFuture<'static, Result<u64, LockError>> {
    async move {
        tokio::task::yield_now().await;
        Ok(*id)
    }
    .boxed_local()
}
