//! Types with names of responses, which are sent later, of frameworks and of others, in a crate that forbids every warning.
#![forbid(warnings)]

use std::{borrow::Cow, fmt, rc::Rc};

use axum::{http, response::Response};
use lock_core::{LockError, distributed_lock};

/// Another crate's response, which has no body to be sent.
#[derive(Debug)]
pub struct GetResponse<T> {
    /// The value that was asked for.
    pub found: Option<T>,
}

/// A type with such a name that cannot be sent to other threads, and cannot outlive its borrows.
#[derive(Debug)]
pub struct Body<'a>(Rc<Cow<'a, str>>);

/// A framework's response.
///
/// # Errors
///
/// If the lock is busy.
#[distributed_lock(key = "order", max_hold = "1m")]
pub async fn frameworks() -> Result<Response, LockError> {
    Ok(Response::default())
}

/// A name of the service's own for a response.
pub type Reply = Response;

/// A response behind an alias.
#[distributed_lock(key = "order", max_hold = "1m")]
pub async fn alias() -> Reply {
    Reply::default()
}

/// A response that may be skipped.
///
/// # Errors
///
/// If the lock is unavailable.
#[distributed_lock(key = "order", on_busy = skip)]
pub async fn skipped_response() -> Result<Option<Reply>, LockError> {
    Ok(Some(Reply::default()))
}

/// A status, headers and a body.
#[distributed_lock(
    key = "order",
    on_error = |error| (error.into(), [("x-id", "7")], axum::body::Body::empty())
)]
pub async fn parts() -> (http::StatusCode, [(&'static str, &'static str); 1], axum::body::Body) {
    (http::StatusCode::OK, [("x-id", "7")], "ok".into())
}

/// With another body than the framework's.
///
/// # Errors
///
/// If the lock is busy.
#[distributed_lock(key = "order", max_hold = "1m")]
pub async fn of_another_body() -> Result<http::Response<Vec<u8>>, LockError> {
    Ok(http::Response::new(Vec::new()))
}

/// A response with a value and an error of any type.
///
/// # Errors
///
/// If the lock is busy.
#[distributed_lock(key = "order")]
pub async fn generic<T: Default, E: From<LockError>>() -> Result<GetResponse<T>, E> {
    let found = Some(T::default());
    Ok(GetResponse { found })
}

/// A response that is borrowed, and not `Send`.
///
/// # Errors
///
/// If the lock is busy.
#[distributed_lock(key = "order:{name}")]
pub async fn borrowed(name: &str) -> Result<Body<'_>, LockError> {
    Ok(Body(Rc::new(name.into())))
}

/// A response behind an alias of the standard result.
///
/// # Errors
///
/// If the lock is busy.
#[distributed_lock(key = "order", on_busy = skip)]
pub async fn skipped() -> Result<Option<GetResponse<u8>>, LockError> {
    Ok(Some(GetResponse { found: None }))
}

/// A response as a trait object.
///
/// # Errors
///
/// If the lock is busy.
#[distributed_lock(key = "order", ttl = "1s")]
pub async fn boxed() -> Result<Box<dyn fmt::Debug>, GetResponse<LockError>>
where
    GetResponse<LockError>: From<LockError>,
{
    Ok(Box::new(GetResponse { found: Some(1) }))
}

impl From<LockError> for GetResponse<LockError> {
    fn from(error: LockError) -> Self {
        Self { found: Some(error) }
    }
}

fn main() {}
