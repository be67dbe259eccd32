//! A fingerprint that is not Serialize.
// error: the trait bound `Request: serde::Serialize` is not satisfied
// at: request
use lock_core::{LockError, run_once};

pub struct Request;

#[run_once(key = "k", keep = "1h", fingerprint = request)]
pub async fn run(request: Request) -> Result<u8, LockError> {
    let _ = request;
    Ok(1)
}
