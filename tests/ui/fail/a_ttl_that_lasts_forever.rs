//! Only a wait can have no end.
// error: `ttl` is not a usable duration: only `wait` can be `"forever"`
// at: "forever"
// error: `max_hold` is not a usable duration: to set no bound, leave it out
// at: "forever"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", ttl = "forever", max_hold = "forever")]
async fn f() -> Result<(), LockError> {
    Ok(())
}
