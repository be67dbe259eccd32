//! Responses in the types of the `http` crate, which axum and poem use.

use http::{
    HeaderValue, Response, StatusCode,
    header::{CONTENT_TYPE, RETRY_AFTER},
};

use crate::{
    error::{FromLockError, LockError},
    integrations::problem::Problem,
};

impl Problem {
    pub(crate) fn status_code(&self) -> StatusCode {
        StatusCode::from_u16(self.status).expect("each problem has a status code")
    }

    pub(crate) fn response(&self) -> Response<String> {
        let mut response = Response::new(self.json());
        *response.status_mut() = self.status_code();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(Self::MEDIA_TYPE));
        if let Some(seconds) = self.retry_after_seconds() {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        response
    }
}

/// Converts the failure to 409 if the lock is busy, to 503 if it is lost or unavailable, to 400 if the key is too long, and
/// to 500 if the program has a mistake.
impl From<LockError> for StatusCode {
    fn from(error: LockError) -> Self {
        Problem::answering(&error).status_code()
    }
}

/// Converts the failure to its status and a text for the client, without the key.
impl From<LockError> for (StatusCode, String) {
    fn from(error: LockError) -> Self {
        let problem = Problem::answering(&error);
        (problem.status_code(), problem.detail.to_owned())
    }
}

/// Converts the failure to its status and a problem document (RFC 9457), with `Retry-After` if it is known when to retry.
impl From<LockError> for Response<String> {
    fn from(error: LockError) -> Self {
        Problem::answering(&error).response()
    }
}

#[diagnostic::do_not_recommend]
impl FromLockError for StatusCode {
    fn from_lock_error(error: LockError) -> Self {
        error.into()
    }
}

#[diagnostic::do_not_recommend]
impl FromLockError for (StatusCode, String) {
    fn from_lock_error(error: LockError) -> Self {
        error.into()
    }
}

#[diagnostic::do_not_recommend]
impl FromLockError for Response<String> {
    fn from_lock_error(error: LockError) -> Self {
        error.into()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{error::KnownHolder, key::LockKey};

    fn busy() -> LockError {
        let left = Some(Duration::from_millis(1500));
        LockError::busy(&LockKey::new("secret-key"), left, KnownHolder::default())
    }

    #[test]
    fn a_failure_is_a_status_with_and_without_a_text() {
        assert_eq!(StatusCode::from(busy()), StatusCode::CONFLICT);
        assert_eq!(
            StatusCode::from_lock_error(LockError::NotConfigured),
            StatusCode::INTERNAL_SERVER_ERROR
        );
        let (status, text) = <(StatusCode, String)>::from(busy());
        assert_eq!(status, StatusCode::CONFLICT);
        assert!(text.contains("try again later"), "{text}");
        assert!(!text.contains("secret"), "{text}");
    }

    #[test]
    fn a_response_has_the_headers_of_its_problem() {
        let response = Response::<String>::from_lock_error(busy());
        assert_eq!(response.status(), StatusCode::CONFLICT);
        assert_eq!(response.headers()[CONTENT_TYPE], "application/problem+json");
        assert_eq!(response.headers()[RETRY_AFTER], "2");
        let response = Response::<String>::from(LockError::unavailable("secret"));
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers()[RETRY_AFTER], "5");
        let response = Response::<String>::from(LockError::NotConfigured);
        assert!(!response.headers().contains_key(RETRY_AFTER));
    }
}
