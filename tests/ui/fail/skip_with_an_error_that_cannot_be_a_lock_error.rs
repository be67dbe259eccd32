//! Skip with an error that cannot be a lock error.
// error: `Result<(), String>` cannot express both that the body was skipped and that the lock failed
// at: Result<(), String>

use lock_core::distributed_lock;

#[distributed_lock(key = "order", on_busy = skip)]
async fn f() -> Result<(), String> {
    Ok(())
}
