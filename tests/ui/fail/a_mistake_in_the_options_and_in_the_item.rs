//! A mistake in the options and in the item.
// error: a number needs a unit
// at: 1
// error: a function that is not `async`
// at: fn

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", ttl = 1)]
fn f() -> Result<(), LockError> {
    Ok(())
}
