//! The response to a failed lock in poem.

use std::io;

use http::StatusCode;
use http_body_util::combinators::BoxBody;
use poem::{Body, Response, error::ResponseError, web::Data};

use crate::{
    error::{FromLockError, LockError},
    guard::LockGuard,
    integrations::{
        held_body::{HeldBody, Peeked},
        problem::Problem,
        response::SentLater,
    },
    manager::{LockManager, default_manager::LockSource, run::Finished},
};

/// Responds with 409 if the lock is busy, with 503 if it is lost or unavailable, with 400 if the key is too long, and with
/// 500 if the program has a mistake. The response has `Retry-After` if it is known when to retry, and a problem document
/// (RFC 9457) that does not name the key. Annotated functions can therefore return `poem::Result<T>`.
impl ResponseError for LockError {
    fn status(&self) -> StatusCode {
        Problem::of(self).status_code()
    }

    fn as_response(&self) -> Response {
        response_of(Problem::answering(self).response())
    }
}

/// Converts a response of the `http` crate to poem's.
pub(crate) fn response_of(response: http::Response<impl Into<Body>>) -> Response {
    let (parts, body) = response.into_parts();
    let mut response = Response::from((parts.status, body));
    *response.headers_mut() = parts.headers;
    response
}

/// Lets annotated functions return `Result<T, Response>`.
impl From<LockError> for Response {
    fn from(error: LockError) -> Self {
        error.as_response()
    }
}

#[diagnostic::do_not_recommend]
impl FromLockError for Response {
    fn from_lock_error(error: LockError) -> Self {
        error.into()
    }
}

/// Lets `locks = data` accept the application's shared state.
impl<T: LockSource> LockSource for Data<T> {
    fn lock_manager(&self) -> LockManager {
        self.0.lock_manager()
    }
}

impl SentLater for Body {
    fn until_sent(self, lock: Finished<'_>) -> (Self, Option<LockGuard>) {
        // Poem's own type of a body cannot be polled.
        let peeked = Peeked::of(BoxBody::from(self));
        peeked.until_sent(lock, |body| BoxBody::new(body).into(), held)
    }
}

fn held(body: Body, guard: LockGuard) -> Body {
    let body = BoxBody::from(body);
    BoxBody::new(HeldBody::<_, io::Error>::new(body, guard)).into()
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
