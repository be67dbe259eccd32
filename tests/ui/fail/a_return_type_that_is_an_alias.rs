//! A return type that is an alias.
// error: cannot represent a lock failure
// at: Answer<u64>

use lock_core::distributed_lock;

#[distributed_lock(key = "order")]
async fn f() -> Answer<u64> {
    Ok(1)
}
type Answer<T> = Result<T, std::num::ParseIntError>;
