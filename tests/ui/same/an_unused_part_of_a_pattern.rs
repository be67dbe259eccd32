//! An unused part of a pattern.

#[allow(unused_imports)]
use lock_core::{LockError, distributed_lock};

struct S {
    c: u64,
    d: u64,
}
#[cfg_attr(not(plain), distributed_lock(key = "order:{n}"))]
async fn f(n: u64, (a, b): (u64, u64), S { c, d }: S) -> Result<u64, LockError> {
    Ok(n + a + c)
}
