//! Skip on a number.
// error: `u64` cannot express that the body was skipped
// at: u64

use lock_core::distributed_lock;

#[distributed_lock(key = "order", on_busy = skip, on_error = |_| 0)]
async fn f() -> u64 {
    1
}
