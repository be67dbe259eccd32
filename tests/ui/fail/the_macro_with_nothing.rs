//! The macro with nothing.
// error: `key!` takes a template
// at: key!()

use lock_core::{LockKey, key};

fn f(id: u64, none: Option<u8>) -> LockKey { key!() }
