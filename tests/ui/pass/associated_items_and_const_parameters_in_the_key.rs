//! Associated items and const parameters in the key.

use lock_core::{LockError, distributed_lock};

trait Named {
    const NAME: &'static str;
    fn tag(&self) -> String;
}
struct Pool<T, const N: usize>(T);
impl<T: Named, const N: usize> Pool<T, N> {
    const KIND: &'static str = "pool";
    fn shard(_: &T) -> usize {
        N
    }
    #[distributed_lock(
        key = "{Self::KIND}:{T::NAME}:{N}:{self.0.tag()}:{Self::shard(&self.0)}:{<T as Named>::NAME}:{n}"
    )]
    async fn f(&self, n: u8) -> Result<u8, LockError> {
        Ok(n)
    }
}
