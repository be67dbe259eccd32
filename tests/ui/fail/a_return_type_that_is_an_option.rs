//! A return type that is an option.
// error: `Option<u64>` cannot represent a lock failure
// at: Option<u64>

use lock_core::distributed_lock;

#[distributed_lock(key = "order")]
async fn f() -> Option<u64> {
    Some(1)
}
