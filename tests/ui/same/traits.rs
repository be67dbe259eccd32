//! Methods unlike those of their trait.

#[allow(unused_imports)]
use lock_core::{LockError, distributed_lock};

trait Loads {
    async fn load(&self, n: u64) -> u64;
    async fn missing(&self);
}
struct MissesOne;
impl Loads for MissesOne {
    #[cfg_attr(not(plain), distributed_lock(key = "order:{n}", on_error = |_| 0))]
    async fn load(&self, n: u64) -> u64 { n }
}
struct HasAnotherArgument;
impl Loads for HasAnotherArgument {
    #[cfg_attr(not(plain), distributed_lock(key = "order:{n}", on_error = |_| 0))]
    async fn load(&self, n: u32) -> u64 { u64::from(n) }
    async fn missing(&self) {}
}
