//! A duration without quotation marks.
// error: it needs quotation marks: write `"10s"`
// at: 10s

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", ttl = 10s)]
async fn f() -> Result<(), LockError> {
    Ok(())
}
