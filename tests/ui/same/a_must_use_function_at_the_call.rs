//! A must use function at the call.

#[allow(unused_imports)]
use lock_core::{LockError, distributed_lock};

#[cfg_attr(not(plain), distributed_lock(key = "order:{n}", on_error = |_| 0))]
#[must_use = "really"]
async fn f(n: u64) -> u64 {
    n
}
async fn g() {
    f(1).await;
}
