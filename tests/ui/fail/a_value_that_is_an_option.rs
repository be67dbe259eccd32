//! A value that is an option.
// error: `Option<u64>` cannot be part of a lock key
// at: "order:{id}"
// note: say what `None` means

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order:{id}")]
async fn f(id: Option<u64>) -> Result<(), LockError> {
    Ok(())
}
