//! A future that is send.

use lock_core::{LockError, distributed_lock};

use std::{cell::Cell, sync::Arc};

#[distributed_lock(key = "n:{n}:{text:>3}:{n:02}", wait = "1s")]
async fn f(n: Arc<u8>, text: &str, cell: Cell<u8>) -> Result<u8, LockError> {
    tokio::task::yield_now().await;
    Ok(*n + cell.get() + u8::from(text.is_empty()))
}

#[distributed_lock(key = text(n).await?, ttl = std::time::Duration::from_secs(1))]
async fn g(n: u8) -> Result<u8, LockError> {
    Ok(n)
}

async fn text(n: u8) -> Result<String, LockError> {
    tokio::task::yield_now().await;
    Ok(n.to_string())
}

fn is_send<T: Send>(_: T) {}
fn check() {
    is_send(f(Arc::new(1), "x", Cell::new(1)));
    is_send(g(1));
}
