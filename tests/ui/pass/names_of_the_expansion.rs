//! Constants, statics and unit structs with names of the expansion: a pattern would match them instead of binding a variable.
#![allow(non_camel_case_types, non_upper_case_globals, missing_debug_implementations)]
#![allow(missing_docs, clippy::missing_errors_doc)]

use lock_core::{LockError, distributed_lock};

// A framework makes a unit struct of a handler with this name.
pub struct key;
pub struct key1;
pub struct error;
pub struct value;
pub const options: u8 = 0;
pub const manager: u8 = 1;
pub static inside: u8 = 0;
pub const outside: u8 = 1;

pub struct failed;

#[distributed_lock(key = "order:{id}")]
pub async fn one(id: u64) -> Result<u64, LockError> {
    Ok(id)
}

#[distributed_lock(key = ["order:{id}", "item:{id}"], on_error = |_| 2)]
pub async fn several(id: u64) -> u64 {
    id
}

#[distributed_lock(key = "order:{id}")]
pub async fn response(id: u64) -> impl axum::response::IntoResponse {
    id.to_string()
}
