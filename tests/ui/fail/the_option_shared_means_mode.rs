//! The option shared means the mode shared.
// error: unknown option `shared`: write `mode = shared`
// at: shared

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", shared = true)]
async fn f() -> Result<(), LockError> {
    Ok(())
}
