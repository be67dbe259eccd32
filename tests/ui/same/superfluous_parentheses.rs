//! Superfluous parentheses.

#[allow(unused_imports)]
use lock_core::{LockError, distributed_lock};

#[cfg_attr(not(plain), distributed_lock(key = "order:{n}"))]
async fn f(n: u64) -> Result<u64, LockError> {
    if (n > 1) {
        return Ok(1);
    }
    Ok(n)
}
