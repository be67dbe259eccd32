//! Responses that are sent after the function returns, and other types with such names, in a crate that forbids every warning.
#![forbid(warnings)]
#![allow(clippy::missing_errors_doc)]

use std::{borrow::Cow, rc::Rc};

use axum::{body::Body, http, response::Response};
use lock_core::{LockError, distributed_lock};

/// A framework's response by another name.
pub type Reply = Response;

/// Returns a framework's response.
#[distributed_lock(key = "order", max_hold = "1m")]
pub async fn of_a_framework() -> Result<Response, LockError> {
    Ok(Response::default())
}

/// Returns a response behind an alias.
#[distributed_lock(key = "order", max_hold = "1m")]
pub async fn alias() -> Reply {
    Reply::default()
}

/// Returns a response that may be skipped.
#[distributed_lock(key = "order", on_busy = skip)]
pub async fn skipped() -> Result<Option<Reply>, LockError> {
    Ok(Some(Reply::default()))
}

/// Returns a status, headers and a body.
#[distributed_lock(
    key = "order",
    on_error = |error| (error.into(), [("x-id", "7")], Body::empty())
)]
pub async fn parts() -> (http::StatusCode, [(&'static str, &'static str); 1], Body) {
    (http::StatusCode::OK, [("x-id", "7")], "ok".into())
}

/// Returns a response with another body than the framework's.
#[distributed_lock(key = "order", max_hold = "1m")]
pub async fn of_another_body() -> Result<http::Response<Vec<u8>>, LockError> {
    Ok(http::Response::new(Vec::new()))
}

/// The response of a client, which has no body to be sent.
#[derive(Debug)]
pub struct GetResponse<T> {
    /// The value that was asked for.
    pub found: Option<T>,
}

/// Returns another response with a value and an error of any type.
#[distributed_lock(key = "order")]
pub async fn generic<T: Default, E: From<LockError>>() -> Result<GetResponse<T>, E> {
    let found = Some(T::default());
    Ok(GetResponse { found })
}

/// A type with such a name that is not `Send`, and borrows.
#[derive(Debug)]
pub struct BorrowedResponse<'a>(Rc<Cow<'a, str>>);

/// Returns a response that is borrowed, and not `Send`.
#[distributed_lock(key = "order:{name}")]
pub async fn borrowed(name: &str) -> Result<BorrowedResponse<'_>, LockError> {
    Ok(BorrowedResponse(Rc::new(name.into())))
}
