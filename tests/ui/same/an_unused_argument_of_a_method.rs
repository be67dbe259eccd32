//! An unused argument of a method.

#[allow(unused_imports)]
use lock_core::{LockError, distributed_lock};

struct S;
impl S {
    #[cfg_attr(not(plain), distributed_lock(key = "order:{n}"))]
    async fn f(&self, n: u64, unused: u64) -> Result<u64, LockError> {
        Ok(n)
    }
}
