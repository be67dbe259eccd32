//! An unsafe function.
// error: an `unsafe` function cannot be locked
// at: unsafe

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order")]
async unsafe fn f() -> Result<(), LockError> {
    Ok(())
}
