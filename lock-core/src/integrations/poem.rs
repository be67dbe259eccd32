//! A failed lock as poem's response.

use http::StatusCode;
use poem::{Response, error::ResponseError, web::Data};

use crate::{
    error::{FromLockError, LockError},
    integrations::problem::Problem,
    manager::{LockManager, LockSource},
};

/// Answers 409 with `Retry-After` if the lock is busy, 503 if it is lost or unavailable, 400 if the key is too long, 500 if the
/// program is wrong; with
/// a problem document (RFC 9457) that does not name the key. So `poem::Result<T>` is a return type of annotated functions.
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

/// So that `locks = data` accepts the application's shared state.
impl<T: LockSource> LockSource for Data<T> {
    fn lock_manager(&self) -> LockManager {
        self.0.lock_manager()
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
