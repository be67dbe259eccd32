//! An extern function.
// error: an `extern` function cannot wait for a lock
// at: extern

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order")]
extern "C" fn f() -> Result<(), LockError> {
    Ok(())
}
