//! `on_error` sees an argument that only a text of it names.
#![allow(clippy::used_underscore_binding)]

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order", on_error = |e| Err(format!("{_id}: {e}")))]
async fn f(_id: u64) -> Result<(), String> {
    Ok(())
}

#[distributed_lock(key = "order", on_error = |e: LockError| Err(format!("{e:_width$}")))]
async fn g(_width: usize) -> Result<(), String> {
    Ok(())
}
