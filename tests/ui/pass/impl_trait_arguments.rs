//! Impl trait arguments.

use lock_core::{LockError, distributed_lock};

use std::fmt::Display;

#[distributed_lock(key = "of:{id}")]
async fn f(id: impl Display + Send, then: impl AsyncFnOnce(u8) -> u8) -> Result<u8, LockError> {
    eprintln!("{id}");
    Ok(then(1).await)
}
