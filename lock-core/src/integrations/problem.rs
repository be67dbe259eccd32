//! The report of a failed lock to a client. Each failure gets its status here, for every framework.

use std::{error::Error, time::Duration};

use crate::{error::LockError, options::is_too_long};

/// A failed lock, in the form that a client may see: fixed texts. They do not name the key, since parts of it may belong to another
/// client. Nor do they contain the backend's report.
pub(crate) struct Problem {
    pub(super) status: Status,
    pub(super) detail: &'static str,
    /// The time after which another try is worthwhile.
    pub(super) retry_after: Option<Duration>,
}

/// The least and the longest pause that a client is told. A renewed lease runs for as long as its holder lives, so its remaining
/// time says little.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// The pause for a client if its request failed because of an outage.
const PAUSE_IN_AN_OUTAGE: Duration = Duration::from_secs(5);

/// The status, which tells a client what to do next.
#[derive(Clone, Copy)]
pub(super) enum Status {
    /// Try again when the other holder has released the lock.
    Conflict,
    /// Try again later. It is unknown whether the work was done.
    Unavailable,
    /// Send another request: the key made from this one is too long.
    BadRequest,
    /// Nothing can be done: the server's program or configuration is wrong.
    Internal,
}

impl Problem {
    /// Returns the problem for a response, and logs the failure, because the response does not show its cause. Not logged are
    /// failures in normal work, and a loss, which the lease has reported already.
    pub(super) fn answering(error: &LockError) -> Self {
        let problem = Self::of(error);
        let is_normal = matches!(problem.status, Status::Conflict | Status::BadRequest);
        if !is_normal && !matches!(error, LockError::Lost { .. }) {
            tracing::warn!(%error, source = error.source(), "a request is answered without its lock");
        }
        problem
    }

    // The match has no wildcard: a new failure does not compile until it has its line.
    pub(super) fn of(error: &LockError) -> Self {
        let (status, detail) = match error {
            LockError::Busy { .. } => (
                Status::Conflict,
                "another request is working on the same thing: try again later",
            ),
            LockError::Lost { .. } => (
                Status::Unavailable,
                "the request was interrupted: it may have been done in part",
            ),
            LockError::Unavailable { .. } => (
                Status::Unavailable,
                "a service that this one needs does not answer: try again later",
            ),
            LockError::Invalid { key: Some(key), .. } if is_too_long(key) => {
                (Status::BadRequest, "a name in the request is too long")
            }
            LockError::Invalid { .. } | LockError::NotConfigured => {
                (Status::Internal, "the server could not process the request")
            }
        };
        let (least, longest) = PAUSES;
        let retry_after = match error {
            // A lock without an expiry is freed by an operator only.
            LockError::Busy { key, retry_after } => retry_after.map(|rest| {
                let typical = key.busy().typical_hold;
                typical.unwrap_or(rest).clamp(least, longest)
            }),
            LockError::Lost { .. } => Some(least),
            LockError::Unavailable { .. } => Some(PAUSE_IN_AN_OUTAGE),
            LockError::Invalid { .. } | LockError::NotConfigured => None,
        };
        Self {
            status,
            detail,
            retry_after,
        }
    }
}

#[cfg(any(feature = "http", feature = "actix"))]
impl Problem {
    /// The media type of [`json`](Self::json).
    pub(super) const MEDIA_TYPE: &str = "application/problem+json";

    pub(super) fn code(&self) -> u16 {
        match self.status {
            Status::Conflict => 409,
            Status::Unavailable => 503,
            Status::BadRequest => 400,
            Status::Internal => 500,
        }
    }

    /// The body of a response (RFC 9457).
    pub(super) fn json(&self) -> String {
        let title = match self.status {
            Status::Conflict => "Conflict",
            Status::Unavailable => "Service Unavailable",
            Status::BadRequest => "Bad Request",
            Status::Internal => "Internal Server Error",
        };
        let (status, detail) = (self.code(), self.detail);
        // All texts are fixed, and no character in them needs an escape.
        format!(
            r#"{{"type":"about:blank","title":"{title}","status":{status},"detail":"{detail}"}}"#
        )
    }

    /// The header `Retry-After`, in whole seconds. It is rounded up, since clients would otherwise retry too early. It is never
    /// zero, which would cause a busy loop.
    pub(super) fn retry_after_seconds(&self) -> Option<u64> {
        let wait = self.retry_after?;
        let started = u64::from(wait.subsec_nanos() > 0);
        Some(wait.as_secs().saturating_add(started).max(1))
    }
}

#[cfg(all(test, any(feature = "http", feature = "actix")))]
mod tests {
    use super::*;
    use crate::{
        error::LeaseLost,
        key::{Busy, LockKey},
    };

    fn busy(retry_after: Option<Duration>) -> LockError {
        LockError::Busy {
            key: LockKey::new("secret-key"),
            retry_after,
        }
    }

    #[test]
    fn a_key_that_a_client_made_too_long_is_a_bad_request() {
        let long = LockKey::new("x".repeat(513));
        let refused = |key: &LockKey| crate::options::check_key("", key).expect_err("too long");
        assert_eq!(Problem::of(&refused(&long)).code(), 400);
        let reserved = LockKey::new("__lock_core__:k");
        assert_eq!(Problem::of(&refused(&reserved)).code(), 500);
    }

    fn all() -> [LockError; 5] {
        let key = LockKey::new("secret-key");
        [
            busy(Some(Duration::from_secs(3))),
            LockError::Lost {
                key: key.clone(),
                reason: LeaseLost::TakenAway,
            },
            LockError::unavailable("secret-source").about(&key),
            LockError::invalid("secret-reason").about(&key),
            LockError::NotConfigured,
        ]
    }

    #[test]
    fn each_failure_has_its_status() {
        let codes = all().map(|error| Problem::of(&error).code());
        assert_eq!(codes, [409, 503, 503, 500, 500]);
    }

    #[test]
    fn the_pause_is_in_whole_seconds_rounded_up_and_at_least_one() {
        let seconds = |wait| Problem::of(&busy(wait)).retry_after_seconds();
        assert_eq!(seconds(None), None);
        let of_millis = [
            (0, 1),
            (1, 1),
            (999, 1),
            (1000, 1),
            (1001, 2),
            (9500, 10),
            (9_900_000, 10),
        ];
        for (millis, expected) in of_millis {
            let wait = Some(Duration::from_millis(millis));
            assert_eq!(seconds(wait), Some(expected), "{millis} ms");
        }
        assert_eq!(seconds(Some(Duration::MAX)), Some(10));
    }

    #[test]
    fn what_passes_by_itself_says_when_to_try_again() {
        let waits = all().map(|error| Problem::of(&error).retry_after_seconds());
        assert_eq!(waits, [Some(3), Some(1), Some(5), None, None]);
    }

    #[test]
    fn a_busy_lock_is_worth_another_try_when_its_holders_are_typically_done() {
        let busy = |rest| {
            let typically = Busy {
                typical_hold: Some(Duration::from_secs(2)),
                ..Busy::default()
            };
            LockError::busy(&LockKey::new("order:7"), rest, typically)
        };
        let seconds = |rest| Problem::of(&busy(rest)).retry_after_seconds();
        assert_eq!(seconds(Some(Duration::from_secs(3600))), Some(2));
        assert_eq!(seconds(Some(Duration::from_millis(10))), Some(2));
        assert_eq!(seconds(None), None, "no holder ends by itself");
    }

    #[test]
    fn a_client_hears_nothing_of_keys_and_sources() {
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
