//! Mistakes in `key!`.

use lock_core::{LockKey, key};

// error: `Option<u8>` cannot be part of a lock key
// at: "x:{none}"
fn the_macro_with_an_option(id: u64, none: Option<u8>) -> LockKey { key!("x:{none}") }

// error: cannot find value `other`
// at: "order:{other}"
fn the_macro_with_an_unknown_name(id: u64, none: Option<u8>) -> LockKey { key!("order:{other}") }

// error: `key!` takes a template
// at: key!()
fn the_macro_with_nothing(id: u64, none: Option<u8>) -> LockKey { key!() }

// error: two values touch
// at: "order:{id}{id}"
fn the_macro_with_touching_values(id: u64, none: Option<u8>) -> LockKey { key!("order:{id}{id}") }

// error: expected string literal
// at: id
fn the_macro_without_a_literal(id: u64, none: Option<u8>) -> LockKey { key!(id) }
