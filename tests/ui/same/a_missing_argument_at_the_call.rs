//! A missing argument at the call.

#[allow(unused_imports)]
use lock_core::{LockError, distributed_lock};

#[cfg_attr(not(plain), distributed_lock(key = "order:{n}"))]
async fn f(n: u64, (a, b): (u64, u64)) -> Result<u64, LockError> {
    Ok(n + a + b)
}
async fn g() {
    let _ = f(1).await;
}
