//! The report of a failed lock to a client, with the status of each failure in every framework.
//!
//! A client must see neither the key, parts of which may belong to another client, nor the source of the error, which names
//! servers.

use std::time::Duration;

use crate::{
    error::{LockError, Repeat},
    options::is_too_long,
    runtime::clock::Clock,
    telemetry::refusals::Refusals,
};

/// A failed lock, in the form that a client may see. All texts are fixed.
pub(crate) struct Problem {
    /// The HTTP status, which tells a client what to do next.
    pub(crate) status: u16,
    pub(crate) detail: &'static str,
    /// How long to wait before another try, in whole seconds.
    pub(crate) retry_after: Option<Duration>,
}

impl Problem {
    /// Returns the problem for a response, and logs the failure, because the response does not show its cause. It does not
    /// log failures that are part of normal operation, losses, which the lease has reported, and errors that the acquire
    /// has logged.
    pub(crate) fn answering(error: &LockError) -> Self {
        static REFUSALS: Refusals = Refusals::new();
        let problem = Self::of(error);
        let is_normal = problem.status < 500;
        if !is_normal && !matches!(error, LockError::Lost { .. }) && !error.is_logged() {
            REFUSALS.log(problem.status, error, Clock::Boot.now());
        }
        problem
    }

    // The match has no wildcard, so that a new variant does not compile until its status is chosen here.
    pub(crate) fn of(error: &LockError) -> Self {
        let (status, detail) = match error {
            // The client should retry after the other holder has released the lock.
            LockError::Busy { .. } => (
                409,
                "another request is working on the same thing: try again later",
            ),
            // The client should retry later. It is unknown whether the work was done.
            LockError::Lost { .. } => (
                503,
                "the request was interrupted, and may have been partly processed",
            ),
            LockError::Unavailable { .. } => (
                503,
                "a service that this one needs does not reply: try again later",
            ),
            LockError::Repeated { reason, .. } => match reason {
                // The client should send the request with a different key.
                Repeat::OtherRequest => (
                    422,
                    "a different request has already been sent with this key",
                ),
                // The client need not do anything.
                Repeat::NotKept => (
                    409,
                    "the request has already been processed, but its response was not stored",
                ),
            },
            // The client should send a different request.
            LockError::Invalid { key: Some(key), .. } if is_too_long(key) => {
                (400, "a name in the request is too long")
            }
            // The client cannot do anything: the server's program or configuration is wrong.
            LockError::Invalid { .. } | LockError::NotConfigured => {
                (500, "the server could not process the request")
            }
        };
        Self {
            status,
            detail,
            retry_after: error.retry_after(),
        }
    }
}

#[cfg(any(feature = "http", feature = "actix"))]
impl Problem {
    /// The media type of [`json`](Self::json).
    pub(crate) const MEDIA_TYPE: &str = "application/problem+json";

    /// Returns the body of a response (RFC 9457).
    pub(crate) fn json(&self) -> String {
        let Self { status, detail, .. } = self;
        let title = match status {
            400 => "Bad Request",
            409 => "Conflict",
            422 => "Unprocessable Content",
            503 => "Service Unavailable",
            _ => "Internal Server Error",
        };
        // All texts are fixed, and none has a character that must be escaped.
        format!(
            r#"{{"type":"about:blank","title":"{title}","status":{status},"detail":"{detail}"}}"#
        )
    }

    /// Returns the value of the header `Retry-After`.
    pub(crate) fn retry_after_seconds(&self) -> Option<u64> {
        self.retry_after.map(|pause| pause.as_secs())
    }
}

#[cfg(all(test, any(feature = "http", feature = "actix")))]
mod tests {
    use super::*;
    use crate::{
        error::{KnownHolder, LeaseLost},
        key::LockKey,
    };

    fn busy(retry_after: Option<Duration>) -> LockError {
        let key = LockKey::new("secret-key");
        LockError::busy(&key, retry_after, KnownHolder::default())
    }

    #[test]
    fn a_key_that_is_too_long_is_a_bad_request() {
        let long = LockKey::new("x".repeat(513));
        let refused = |key: &LockKey| crate::options::check_key("", key).expect_err("too long");
        assert_eq!(Problem::of(&refused(&long)).status, 400);
        let reserved = LockKey::new("__lock_core__:k");
        assert_eq!(Problem::of(&refused(&reserved)).status, 500);
    }

    fn all() -> [LockError; 5] {
        let key = LockKey::new("secret-key");
        [
            busy(Some(Duration::from_secs(3))),
            LockError::lost(&key, LeaseLost::TakenAway, None),
            LockError::unavailable("secret-source").about(&key),
            LockError::invalid("secret-reason").about(&key),
            LockError::NotConfigured,
        ]
    }

    fn repeated() -> [LockError; 2] {
        let key = LockKey::new("secret-key");
        [Repeat::OtherRequest, Repeat::NotKept].map(|reason| LockError::Repeated {
            key: key.clone(),
            reason,
        })
    }

    #[test]
    fn a_response_to_a_refused_repeat_has_the_reason_and_no_retry_after() {
        let found = repeated().map(|error| {
            let problem = Problem::of(&error);
            assert_eq!(problem.retry_after_seconds(), None);
            assert!(!problem.json().contains("secret"));
            problem.json()
        });
        let [other_request, not_kept] = found;
        assert!(
            other_request.contains("Unprocessable Content"),
            "{other_request}"
        );
        assert!(not_kept.contains(r#""Conflict""#), "{not_kept}");
        assert!(
            not_kept.contains("has already been processed"),
            "{not_kept}"
        );
    }

    #[test]
    fn each_failure_has_its_status() {
        let codes = all().map(|error| Problem::of(&error).status);
        assert_eq!(codes, [409, 503, 503, 500, 500]);
        assert_eq!(
            repeated().map(|error| Problem::of(&error).status),
            [422, 409]
        );
    }

    #[test]
    fn the_retry_after_header_carries_the_pause_of_the_error() {
        let found = all().map(|error| {
            let seconds = Problem::of(&error).retry_after_seconds();
            assert_eq!(seconds.map(Duration::from_secs), error.retry_after());
            seconds
        });
        assert_eq!(found, [Some(3), Some(1), Some(5), None, None]);
    }

    #[test]
    fn a_response_has_neither_key_nor_source() {
        for error in all() {
            let json = Problem::of(&error).json();
            assert!(!json.contains("secret"), "{json}");
        }
    }

    #[test]
    fn the_body_is_a_problem_document() {
        assert_eq!(
            Problem::of(&busy(None)).json(),
            r#"{"type":"about:blank","title":"Conflict","status":409,"detail":"another request is working on the same thing: try again later"}"#
        );
    }
}
