//! An unused must use in the body.

#[allow(unused_imports)]
use lock_core::{LockError, distributed_lock};

#[cfg_attr(not(plain), distributed_lock(key = "order:{n}"))]
async fn f(n: u64) -> Result<u64, LockError> {
    g();
    Ok(n)
}
fn g() -> Result<u8, u8> {
    Ok(1)
}
