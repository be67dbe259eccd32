//! The macro with an option.
// error: `Option<u8>` cannot be part of a lock key
// at: "x:{none}"

use lock_core::{LockKey, key};

fn f(id: u64, none: Option<u8>) -> LockKey { key!("x:{none}") }
