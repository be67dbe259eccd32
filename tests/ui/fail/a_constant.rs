//! A constant.
// error: a `const` item cannot wait for a lock
// at: const

use lock_core::distributed_lock;

#[distributed_lock(key = "order")]
const N: u8 = 1;
