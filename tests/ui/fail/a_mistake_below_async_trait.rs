//! A mistake below `async_trait` causes no further errors.
// error: no parameter is called `ix`: did you mean `id`?
// at: "x:{ix}"

use lock_core::{LockError, distributed_lock};

use async_trait::async_trait;
#[async_trait]
trait T {
    async fn f(&self, id: u64) -> Result<u8, LockError>;
}
struct S;
#[async_trait]
impl T for S {
    #[distributed_lock(key = "x:{ix}")]
    async fn f(&self, id: u64) -> Result<u8, LockError> {
        Ok(1)
    }
}
