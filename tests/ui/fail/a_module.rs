//! A module.
// error: only a function can be locked, not a module
// at: mod

use lock_core::distributed_lock;

#[distributed_lock(key = "order")]
mod m {}
