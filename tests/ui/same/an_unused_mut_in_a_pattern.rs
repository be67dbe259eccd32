//! An unused mut in a pattern.

#[allow(unused_imports)]
use lock_core::{LockError, distributed_lock};

#[cfg_attr(not(plain), distributed_lock(key = "order:{n}"))]
async fn f(n: u64, (mut x, _): (u64, u64)) -> Result<u64, LockError> {
    Ok(n + x)
}
