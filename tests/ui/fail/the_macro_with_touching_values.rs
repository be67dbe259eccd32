//! The macro with touching values.
// error: two values touch
// at: "order:{id}{id}"

use lock_core::{LockKey, key};

fn f(id: u64, none: Option<u8>) -> LockKey { key!("order:{id}{id}") }
