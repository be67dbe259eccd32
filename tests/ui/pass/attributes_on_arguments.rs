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

struct Path<T>(T);
#[distributed_lock(key = "n", on_error = |error| Err(format!("{n} {m}: {error}")))]
async fn seen_by_on_error(
    #[cfg(not(any()))] n: u64,
    #[cfg(not(any()))] Path(m): Path<u8>,
    #[cfg(any())] n: u8,
) -> Result<u64, String> {
    Ok(n)
}
