//! A sync function.
// error: a function that is not `async` cannot wait for a lock: write `async fn`
// at: fn

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order")]
fn f() -> Result<(), LockError> {
    Ok(())
}
