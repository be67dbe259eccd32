//! Only a wait can have no end.
// error: `ttl` is no usable duration: only `wait` can be `"forever"`
// at: "forever"
// error: `max_hold` is no usable duration: without a bound it is left out
// at: "forever"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", ttl = "forever", max_hold = "forever")]
async fn f() -> Result<(), LockError> {
    Ok(())
}
