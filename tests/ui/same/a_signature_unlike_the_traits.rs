//! A signature unlike the traits.

#[allow(unused_imports)]
use lock_core::{LockError, distributed_lock};

trait T {
    async fn f(&self, n: u64) -> u64;
}
struct S;
impl T for S {
    #[cfg_attr(not(plain), distributed_lock(key = "order:{n}", on_error = |_| 0))]
    async fn f(&self, n: u32) -> u64 {
        u64::from(n)
    }
}
