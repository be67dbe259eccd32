//! A public enum.
// error: only a function can be locked, not a type
// at: enum

use lock_core::distributed_lock;

#[distributed_lock(key = "order")]
pub enum E {
    A,
}
