//! An assignment that is never read.

#[allow(unused_imports)]
use lock_core::{LockError, distributed_lock};

#[cfg_attr(not(plain), distributed_lock(key = "order:{n}"))]
async fn f(n: u64, mut x: u64) -> Result<u64, LockError> {
    x = 5;
    Ok(n)
}
