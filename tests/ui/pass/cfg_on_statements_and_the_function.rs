//! Cfg on statements and the function.

use lock_core::{LockError, distributed_lock};

#[cfg(not(any()))]
#[distributed_lock(key = "n:{n}")]
#[cfg(not(any()))]
async fn f(n: u8) -> Result<u8, LockError> {
    #[cfg(any())]
    {
        missing
    }
    #[cfg(not(any()))]
    let n = n + 1;
    Ok(n)
}
#[cfg(any())]
#[distributed_lock(key = "n:{n}")]
async fn missing(n: Missing) {}
