//! An extractor of a web framework, in which the value is.
// error: `axum::extract::Path<u64>` cannot be part of a lock key
// at: "order:{id}"
// note: for an extractor, write `Path(id): Path<u64>`

use axum::extract::Path;
use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order:{id}")]
async fn f(id: Path<u64>) -> Result<(), LockError> {
    Ok(())
}
