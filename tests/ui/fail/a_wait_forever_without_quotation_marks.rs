//! A wait without end, without quotation marks.
// error: `wait` is not a usable duration: it needs quotation marks: write `"forever"`
// at: forever

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", wait = forever)]
async fn f() -> Result<(), LockError> {
    Ok(())
}
