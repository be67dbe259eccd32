//! A wrong argument at the call.

#[allow(unused_imports)]
use lock_core::{LockError, distributed_lock};

#[cfg_attr(not(plain), distributed_lock(key = "order:{n}"))]
async fn f(n: u64, name: String) -> Result<u64, LockError> {
    Ok(n + name.len() as u64)
}
async fn g() {
    let _ = f("x", 5).await;
}
