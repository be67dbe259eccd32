//! A value with a spec that is not display.
// error: `Option<u64>` cannot be part of a lock key
// at: "order:{id:>5}"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order:{id:>5}")]
async fn f(id: Option<u64>) -> Result<(), LockError> {
    Ok(())
}
