//! Constants and unit structs named like the expansions own: a pattern would name them, and bind no variable.
#![allow(non_camel_case_types, non_upper_case_globals, missing_debug_implementations)]
#![allow(clippy::missing_errors_doc)]

use lock_core::{LockError, distributed_lock};

/// A unit struct, as a framework makes of a handler with this name.
pub struct key;
/// Another.
pub struct key1;
/// Another.
pub struct error;
/// Another.
pub struct value;
/// Another.
pub const options: u8 = 0;
/// Another.
pub const manager: u8 = 1;
/// Another.
pub static inside: u8 = 0;
/// Another.
pub const outside: u8 = 1;

/// Another.
pub struct failed;

/// One key.
#[distributed_lock(key = "order:{id}")]
pub async fn one(id: u64) -> Result<u64, LockError> {
    Ok(id)
}

/// Several keys.
#[distributed_lock(key = ["order:{id}", "item:{id}"], on_error = |_| 2)]
pub async fn several(id: u64) -> u64 {
    id
}

/// A response.
#[distributed_lock(key = "order:{id}")]
pub async fn response(id: u64) -> impl axum::response::IntoResponse {
    id.to_string()
}
