//! Answers that no later caller can have.
// error: a stream cannot be given to later callers: return what it is made from, as a `Result<T, E>` where `T` implements serde's traits
// at: Sse
// error: an `impl Responder` cannot be given to later callers: return a `Result<T, E>` where `T` implements serde's traits, and make the response from it in a second function
// at: impl Responder
// error: an `impl Responder` cannot be given to later callers
// at: Result<impl Responder, LockError>
use actix_web::Responder;
use lock_core::{LockError, run_once};

pub struct Sse;

#[run_once(key = "k", keep = "1h")]
pub async fn events() -> Result<Sse, LockError> {
    Ok(Sse)
}

#[run_once(key = "k", keep = "1h")]
pub async fn respond() -> impl Responder {
    "text"
}

#[run_once(key = "k", keep = "1h")]
pub async fn respond_in_result() -> Result<impl Responder, LockError> {
    Ok("text")
}
