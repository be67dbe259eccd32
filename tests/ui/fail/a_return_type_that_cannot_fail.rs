//! A return type that cannot fail.
// error: `u64` cannot represent a lock failure
// at: u64
// note: on_error

use lock_core::distributed_lock;

#[distributed_lock(key = "order")]
async fn f(n: u64) -> u64 {
    n
}
