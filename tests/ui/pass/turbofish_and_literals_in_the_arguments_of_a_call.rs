//! Turbofish and literals in the arguments of a call.

use lock_core::{LockError, distributed_lock};

#[distributed_lock(
    key = "n:{text.split('-').collect::<Vec<_>>()[0]}:{i64::from_str_radix(&text, 16).unwrap_or(1)}"
)]
async fn f(text: String) -> Result<String, LockError> {
    Ok(text)
}
