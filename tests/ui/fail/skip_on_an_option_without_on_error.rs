//! `on_busy = skip` with an `Option`, and without `on_error`.
// error: `Option<u64>` cannot express both that the body was skipped and that the lock failed
// at: Option<u64>
// note: on_error

use lock_core::distributed_lock;

#[distributed_lock(key = "order", on_busy = skip)]
async fn f() -> Option<u64> {
    Some(1)
}
