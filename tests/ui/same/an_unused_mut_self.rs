//! An unused mut self.

#[allow(unused_imports)]
use lock_core::{LockError, distributed_lock};

struct S;
impl S {
    #[cfg_attr(not(plain), distributed_lock(key = "order:{n}"))]
    async fn f(mut self, n: u64) -> Result<u64, LockError> {
        Ok(n)
    }
}
