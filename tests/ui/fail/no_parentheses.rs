//! No parentheses.
// error: missing `key`: name what is locked, as in `key = "order:{order_id}"`
// at: #[distributed_lock]

use lock_core::{LockError, distributed_lock};

#[distributed_lock]
async fn f() -> Result<(), LockError> {
    Ok(())
}
