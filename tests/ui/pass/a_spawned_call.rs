//! A spawned call.

use lock_core::{LockError, distributed_lock};

use std::sync::Arc;
struct Service {
    n: u64,
}
impl Service {
    #[distributed_lock(key = "n:{self.n}")]
    async fn run(self: Arc<Self>) -> Result<u64, LockError> {
        tokio::task::yield_now().await;
        Ok(self.n)
    }
}
#[distributed_lock(key = "n:{text}")]
async fn borrowed(text: &str) -> Result<usize, LockError> {
    tokio::task::yield_now().await;
    Ok(text.len())
}
fn spawn(service: Arc<Service>) {
    tokio::spawn(service.run());
    tokio::spawn(async move {
        let text = String::from("x");
        borrowed(&text).await
    });
}
