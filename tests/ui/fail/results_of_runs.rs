//! Results that cannot be stored for later callers.

use actix_web::Responder;
use lock_core::{LockError, run_once};

// error: the trait bound `Request: serde::Serialize` is not satisfied
// at: request
pub struct Request;
#[run_once(key = "k", keep = "1h", fingerprint = request)]
pub async fn a_fingerprint_that_is_not_serialize(request: Request) -> Result<u8, LockError> {
    let _ = request;
    Ok(1)
}

// error: `Result<Receipt, LockError>` cannot be remembered for later callers
// at: Result<Receipt, LockError>
// note: this value is given to every caller, in every process
// note: return `Result<T, E>` where `T: serde::Serialize + serde::de::DeserializeOwned`
pub struct Receipt;
#[run_once(key = "k", keep = "1h")]
pub async fn a_value_that_cannot_be_remembered() -> Result<Receipt, LockError> { Ok(Receipt) }

// The same type, if the body is dropped with its caller.
// error: `u8` cannot be remembered for later callers
// at: u8
#[run_once(key = "k", keep = "1h", on_drop = cancel, on_error = |_| 0)]
pub async fn a_value_that_cannot_be_remembered_and_is_dropped() -> u8 { 1 }

// error: a stream cannot be given to later callers: return what it is made from, as a `Result<T, E>` where `T` implements serde's traits
// at: Sse
// error: an `impl Responder` cannot be given to later callers: return a `Result<T, E>` where `T` implements serde's traits, and make the response from it in a second function
// at: impl Responder
// error: an `impl Responder` cannot be given to later callers
// at: Result<impl Responder, LockError>
pub struct Sse;
#[run_once(key = "k", keep = "1h")]
pub async fn events() -> Result<Sse, LockError> { Ok(Sse) }
#[run_once(key = "k", keep = "1h")]
pub async fn respond() -> impl Responder { "text" }
#[run_once(key = "k", keep = "1h")]
pub async fn respond_in_result() -> Result<impl Responder, LockError> { Ok("text") }
