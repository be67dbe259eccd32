//! Skip on a type without a value that means skipped.
// error: `Result<u64, LockError>` cannot express both that the body was skipped and that the lock failed
// at: Result<u64, LockError>
// note: Option

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", on_busy = skip)]
async fn f() -> Result<u64, LockError> {
    Ok(1)
}
