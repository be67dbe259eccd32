//! The macro without a literal.
// error: expected string literal
// at: id

use lock_core::{LockKey, key};

fn f(id: u64, none: Option<u8>) -> LockKey { key!(id) }
