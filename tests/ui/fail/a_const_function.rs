//! A const function.
// error: a `const` item cannot wait for a lock
// at: const

use lock_core::distributed_lock;

#[distributed_lock(key = "order")]
const fn f() -> u8 {
    1
}
