//! A mistake in a trait impl.
// error: no parameter is called `x`
// at: "{x}"

use lock_core::{LockError, distributed_lock};

trait T {
    async fn f(&self) -> Result<u8, LockError>;
}
struct S;
impl T for S {
    #[distributed_lock(key = "{x}")]
    async fn f(&self) -> Result<u8, LockError> {
        Ok(1)
    }
}
