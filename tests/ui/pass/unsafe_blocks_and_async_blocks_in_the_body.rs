//! Unsafe blocks and async blocks in the body.

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "n")]
async fn f(n: u8) -> Result<u8, LockError> {
    let inner = async {
        if n > 1 {
            return Err(LockError::NotConfigured);
        }
        Ok(n)
    };
    let closure = async |m: u8| {
        if m > 1 {
            return m;
        }
        m + 1
    };
    Ok(inner.await? + closure(n).await)
}
