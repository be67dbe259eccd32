//! Skip on a number without on error.
// error: `u64` cannot express both that the body was skipped and that the lock failed
// at: u64

use lock_core::distributed_lock;

#[distributed_lock(key = "order", on_busy = skip)]
async fn f() -> u64 {
    1
}
