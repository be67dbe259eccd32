//! A use after a move.

#[allow(unused_imports)]
use lock_core::{LockError, distributed_lock};

#[cfg_attr(not(plain), distributed_lock(key = "order:{n}"))]
async fn f(n: u64, x: String) -> Result<u64, LockError> {
    drop(x);
    drop(x);
    Ok(n)
}
