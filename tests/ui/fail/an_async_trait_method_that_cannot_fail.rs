//! An async trait method that cannot fail.
// error: `Vec<u8>` cannot represent a lock failure
// at: Vec<u8>

use lock_core::distributed_lock;

#[distributed_lock(key = "order")]
async fn f() -> Vec<u8> {
    Vec::new()
}
