//! The response to a failed lock in axum. It uses only `axum-core`, so it works with every version of axum that is built on
//! the same `axum-core`.

use axum_core::{
    BoxError,
    body::Body,
    response::{IntoResponse, Response},
};
use http::StatusCode;

use crate::{
    error::{FromLockError, LockError},
    guard::LockGuard,
    integrations::{
        held_body::{HeldBody, Peeked},
        problem::Problem,
        response::SentLater,
    },
    manager::run::Finished,
};

/// Responds with 409 if the lock is busy, with 503 if it is lost or unavailable, with 400 if the key is too long, and with
/// 500 if the program has a mistake. The response has `Retry-After` if it is known when to retry, and a problem document
/// (RFC 9457) that does not name the key. Handlers can therefore return `LockError` as their error.
impl IntoResponse for LockError {
    fn into_response(self) -> Response {
        Problem::answering(&self).response().map(Body::from)
    }
}

/// Lets annotated functions return `Result<T, Response>`.
impl From<LockError> for Response {
    fn from(error: LockError) -> Self {
        error.into_response()
    }
}

#[diagnostic::do_not_recommend]
impl FromLockError for Response {
    fn from_lock_error(error: LockError) -> Self {
        error.into_response()
    }
}

impl SentLater for Body {
    fn until_sent(self, lock: Finished<'_>) -> (Self, Option<LockGuard>) {
        let hold = |body, guard| Self::new(HeldBody::<_, BoxError>::new(body, guard));
        Peeked::of(self).until_sent(lock, Self::new, hold)
    }
}

impl SentLater for Response {
    fn until_sent(self, lock: Finished<'_>) -> (Self, Option<LockGuard>) {
        if self.status() == StatusCode::SWITCHING_PROTOCOLS {
            return (self, Some(lock.upgraded()));
        }
        let (parts, body) = self.into_parts();
        let (body, guard) = body.until_sent(lock);
        (Self::from_parts(parts, body), guard)
    }
}
