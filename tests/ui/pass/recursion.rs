//! Recursion.

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "n:{n}")]
async fn down(n: u64) -> Result<u64, LockError> {
    if n == 0 {
        return Ok(0);
    }
    Ok(1 + Box::pin(down(n - 1)).await?)
}

fn is_send<T: Send>(_: T) {}

#[distributed_lock(key = "n:{n}", on_error = |_| 0)]
fn boxed(n: u64) -> std::pin::Pin<Box<dyn Future<Output = u64> + Send>> {
    Box::pin(async move { if n == 0 { 0 } else { 1 + boxed(n - 1).await } })
}
