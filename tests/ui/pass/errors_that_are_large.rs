//! Errors that are large, which clippy does not report in an async function.
#![allow(clippy::missing_errors_doc)]

use lock_core::distributed_lock;
use tonic::Status;

/// With an error that is converted by its trait.
#[distributed_lock(key = "order:{id}")]
pub async fn by_its_trait(id: u64) -> Result<u64, Status> {
    Ok(id)
}

/// With a body that may be skipped.
#[distributed_lock(key = "order:{id}", on_busy = skip)]
pub async fn skipped(id: u64) -> Result<Option<u64>, Status> {
    Ok(Some(id))
}
