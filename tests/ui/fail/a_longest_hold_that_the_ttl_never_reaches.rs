//! A longest hold that a lease without renewal never reaches.
// error: renewal is off, so the lease ends at its ttl (10s) and never reaches max_hold (60s): leave max_hold out, or choose a longer ttl
// at: "1m"

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", max_hold = "1m", renew = false, ttl = "10s")]
async fn f() -> Result<(), LockError> {
    Ok(())
}
