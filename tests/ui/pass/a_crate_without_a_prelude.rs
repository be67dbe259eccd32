//! A crate without a prelude.
#![no_implicit_prelude]

use ::lock_core::{LockError, distributed_lock};
use ::std::result::Result;

#[distributed_lock(key = "n:{n}:{n:04}", ttl = "1s", lease = lease, on_busy = skip)]
async fn f(n: u8) -> Result<(), LockError> {
    let _ = (n, lease);
    Result::Ok(())
}
