//! Impl trait inside the result.

use lock_core::{LockError, distributed_lock};

use std::fmt::Display;

#[distributed_lock(key = "of:{id}")]
async fn f(id: u64) -> Result<impl Display, LockError> {
    if id > 2 {
        return Ok(id);
    }
    Ok(1)
}

#[distributed_lock(key = "of:{id}")]
async fn g(id: u64) -> Result<impl Iterator<Item = u64> + use<>, LockError> {
    Ok(0..id)
}
