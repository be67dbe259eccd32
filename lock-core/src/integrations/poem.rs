//! A failed lock as poem's response.

use std::io;

use http::StatusCode;
use http_body::Body as _;
use http_body_util::combinators::BoxBody;
use poem::{Body, Response, error::ResponseError, web::Data};

use crate::{
    error::{FromLockError, LockError},
    guard::LockGuard,
    integrations::{
        problem::Problem,
        response::{Rest, SentLater},
    },
    manager::{LockManager, LockSource},
};

/// Answers 409 if the lock is busy, and 503 if it is lost or unavailable. A key that is too long becomes 400, a mistake in the
/// program 500. The response has `Retry-After` if a time to try again is known, and a problem document (RFC 9457) that does not
/// name the key. So `poem::Result<T>` is a return type of annotated functions.
impl ResponseError for LockError {
    fn status(&self) -> StatusCode {
        Problem::of(self).status_code()
    }

    fn as_response(&self) -> Response {
        let (parts, body) = Problem::answering(self).response().into_parts();
        let mut response = Response::from((parts.status, body));
        *response.headers_mut() = parts.headers;
        response
    }
}

/// Makes `Result<T, Response>` a return type of annotated functions.
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
    fn rest(&mut self) -> Rest {
        // Only this form of a body shows its size.
        let body: BoxBody<_, io::Error> = std::mem::take(self).into();
        let size = body.size_hint().exact();
        *self = body.into();
        match size {
            Some(_) => Rest::Nothing,
            None => Rest::Stream,
        }
    }

    fn hold(self, guard: LockGuard) -> Self {
        Self::from_bytes_stream(guard.hold_during(self.into_bytes_stream()))
    }
}

impl SentLater for Response {
    fn rest(&mut self) -> Rest {
        let mut body = self.take_body();
        let rest = body.rest();
        self.set_body(body);
        rest
    }

    fn hold(self, guard: LockGuard) -> Self {
        let (parts, body) = self.into_parts();
        Self::from_parts(parts, body.hold(guard))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_poems_status_in_each_way_to_ask() {
        let error = || LockError::unavailable("secret");
        assert_eq!(error().status(), StatusCode::SERVICE_UNAVAILABLE);
        let response = Response::from(error());
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(
            poem::Error::from(error()).status(),
            StatusCode::SERVICE_UNAVAILABLE
        );
    }
}
