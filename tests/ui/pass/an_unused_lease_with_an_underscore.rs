//! An unused lease with an underscore.

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "n", lease = _lease)]
async fn f() -> Result<(), LockError> {
    Ok(())
}
