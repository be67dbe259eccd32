//! The macro with an unknown name.
// error: cannot find value `other`
// at: "order:{other}"

use lock_core::{LockKey, key};

fn f(id: u64, none: Option<u8>) -> LockKey { key!("order:{other}") }
