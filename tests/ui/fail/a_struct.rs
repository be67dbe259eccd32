//! A struct.
// error: only a function can be locked, not a type
// at: struct

use lock_core::distributed_lock;

#[distributed_lock(key = "order")]
struct S;
