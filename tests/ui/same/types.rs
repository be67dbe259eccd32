//! Types that do not fit, in the body and at the call.

use actix_web::Responder;
use axum::response::IntoResponse;
#[allow(unused_imports)]
use lock_core::{LockError, distributed_lock};

#[cfg_attr(not(plain), distributed_lock(key = "order:{n}"))]
async fn a_missing_ok(n: u64) -> Result<u64, LockError> { n }

#[cfg_attr(not(plain), distributed_lock(key = "order:{n}"))]
async fn a_type_error_in_a_return(n: u64) -> Result<u64, LockError> { if n > 1 { return Ok("text"); } Ok(n) }

#[cfg_attr(not(plain), distributed_lock(key = "order:{n}"))]
async fn a_type_error_in_the_tail(n: u64) -> Result<u64, LockError> { Ok("text") }

#[cfg_attr(not(plain), distributed_lock(key = "order:{n}"))]
async fn an_unknown_method(n: u64) -> Result<u64, LockError> { Ok(n.nothing()) }

#[cfg_attr(not(plain), distributed_lock(key = "order:{n}"))]
async fn with_a_pattern(n: u64, (a, b): (u64, u64)) -> Result<u64, LockError> { Ok(n + a + b) }
async fn a_missing_argument_at_the_call() { let _ = with_a_pattern(1).await; }

#[cfg_attr(not(plain), distributed_lock(key = "order:{n}"))]
async fn with_a_name(n: u64, name: String) -> Result<u64, LockError> { Ok(n + name.len() as u64) }
async fn a_wrong_argument_at_the_call() { let _ = with_a_name("x", 5).await; }

struct Mine;
#[cfg_attr(not(plain), distributed_lock(key = "order"))]
async fn an_impl_responder_of_another_type() -> impl Responder { Mine }

#[cfg_attr(not(plain), distributed_lock(key = "order"))]
async fn two_types_in_an_impl_into_response(first: bool) -> impl IntoResponse { if first { return "first"; } 1_u8.to_string() }
