//! Functions that return a boxed future.

use lock_core::{LockError, distributed_lock};

use futures_util::{
    FutureExt,
    future::{BoxFuture, LocalBoxFuture},
};
use std::{future::Future, pin::Pin};

#[distributed_lock(key = "order:{id}")]
fn pinned(id: u64) -> Pin<Box<dyn Future<Output = Result<u64, LockError>> + Send>> {
    Box::pin(async move {
        if id > 2 {
            return Ok(1);
        }
        Ok(id)
    })
}

#[distributed_lock(key = "order:{id}")]
fn aliased(id: &u64) -> BoxFuture<'_, Result<Box<dyn std::fmt::Debug + Send>, LockError>> {
    async move {
        if *id > 2 {
            return Ok(Box::new(1) as Box<dyn std::fmt::Debug + Send>);
        }
        Ok(Box::new(*id))
    }
    .boxed()
}

#[distributed_lock(key = "order:{id}")]
fn local(id: std::rc::Rc<u64>) -> LocalBoxFuture<'static, Result<u64, LockError>> {
    async move {
        tokio::task::yield_now().await;
        Ok(*id)
    }
    .boxed_local()
}

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

#[distributed_lock(key = "order:{id}")]
fn own_alias(id: u64) -> Boxed<Result<u64, LockError>> {
    Box::pin(async move { Ok(id) })
}
