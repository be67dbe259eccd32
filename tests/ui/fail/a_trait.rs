//! A trait.
// error: only a function can be locked, not a trait
// at: trait

use lock_core::distributed_lock;

#[distributed_lock(key = "order")]
trait T {}
