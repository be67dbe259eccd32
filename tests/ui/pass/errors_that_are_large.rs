//! Errors that are large: clippy does not report them in an `async fn`.
#![allow(clippy::missing_errors_doc)]

use lock_core::distributed_lock;
use tonic::Status;

/// Converts the error by its trait.
#[distributed_lock(key = "order:{id}")]
pub async fn by_its_trait(id: u64) -> Result<u64, Status> {
    Ok(id)
}

/// May skip the body.
#[distributed_lock(key = "order:{id}", on_busy = skip)]
pub async fn skipped(id: u64) -> Result<Option<u64>, Status> {
    Ok(Some(id))
}
