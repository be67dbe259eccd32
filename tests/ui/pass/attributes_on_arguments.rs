//! Attributes on arguments.

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "n:{n}")]
async fn f(
    n: u64,
    #[allow(unused_variables)] left: u8,
    #[expect(unused_variables, reason = "to see that it is fulfilled once")] right: u8,
    #[cfg(any())] c: u8,
    #[cfg(not(any()))] d: u8,
    #[cfg_attr(not(any()), allow(unused_mut))] mut e: u8,
    #[cfg(any())] Some(g): Missing,
) -> Result<u64, LockError> {
    Ok(n + u64::from(d + e))
}
