//! An error type that cannot be a lock error.
// error: `Result<u64, String>` cannot represent a lock failure
// at: Result<u64, String>

use lock_core::distributed_lock;

#[distributed_lock(key = "order")]
async fn f() -> Result<u64, String> {
    Ok(1)
}
