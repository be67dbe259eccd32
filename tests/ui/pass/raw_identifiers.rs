//! Raw identifiers.

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "x{type}:{r#match}", lease = r#loop)]
async fn r#fn(r#type: u8, r#match: &str) -> Result<u8, LockError> {
    let _ = (r#match, r#loop.fencing_token());
    Ok(r#type)
}
