//! A function without a body.
// error: `load` has no body to lock: annotate the functions that implement it
// at: load

use lock_core::{LockError, distributed_lock};

#[allow(async_fn_in_trait)]
trait T {
    #[distributed_lock(key = "order")]
    async fn load(&self) -> Result<(), LockError>;
}
