//! The option exclusive means the mode exclusive.
// error: there is no option `exclusive`: write `mode = exclusive`
// at: exclusive

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", exclusive = true)]
async fn f() -> Result<(), LockError> {
    Ok(())
}
