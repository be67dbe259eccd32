//! Macros in the body and in the type.

use lock_core::{LockError, distributed_lock};

macro_rules! result { ($t:ty) => { Result<$t, LockError> } }
macro_rules! bail {
    ($e:expr) => {
        return Err($e)
    };
}
#[distributed_lock(key = "n")]
async fn f(n: u8) -> result!(u8) {
    if n > 1 {
        bail!(LockError::NotConfigured);
    }
    tokio::select! { () = tokio::task::yield_now() => Ok(n) }
}
