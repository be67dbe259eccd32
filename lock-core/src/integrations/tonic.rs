//! The status of a gRPC call whose lock failed.

use std::pin::Pin;

use futures_core::Stream;
use tonic::{Code, Response, Status, metadata::MetadataMap};

use crate::{
    error::LockError,
    guard::LockGuard,
    integrations::{problem::Problem, response::SentLater},
    manager::run::Finished,
};

/// The boxed stream of a response, which can be replaced by one that keeps a lock.
type BoxStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The header that tells gRPC's retries how long to wait, in milliseconds, as a signed 32-bit number. Clients with
/// `ABORTED` in their retry policy obey it automatically, but would ignore `Retry-After` or a header of our own. The
/// error details of `google.rpc` would need another crate.
const PUSHBACK: &str = "grpc-retry-pushback-ms";

/// Converts the failure to `ABORTED` if the lock is busy, to `UNAVAILABLE` if it is lost or unavailable, to
/// `INVALID_ARGUMENT` if the key is too long, and to `INTERNAL` if the program has a mistake. A request that has already
/// been processed, but whose response was not stored, is `ALREADY_EXISTS`. The message does not name the key.
///
/// `grpc-retry-pushback-ms` says when to retry, if that is known. For a busy lock, it is the time for which the lock is
/// typically held. Clients with a retry policy for the code wait for that long before they retry.
impl From<LockError> for Status {
    fn from(error: LockError) -> Self {
        let problem = Problem::answering(&error);
        let code = match problem.status {
            409 if error.is_busy() => Code::Aborted,
            // The request has already been processed. A retry policy would retry `ABORTED` endlessly.
            409 => Code::AlreadyExists,
            503 => Code::Unavailable,
            400 | 422 => Code::InvalidArgument,
            _ => Code::Internal,
        };
        let mut metadata = MetadataMap::new();
        if let Some(pause) = problem.retry_after {
            let millis = i32::try_from(pause.as_millis()).unwrap_or(i32::MAX);
            metadata.insert(PUSHBACK, millis.into());
        }
        Self::with_metadata(code, problem.detail, metadata)
    }
}

/// The attribute refuses a return type that names a stream. This implementation is for streams that are hidden by an alias.
impl<T: 'static> SentLater for Response<BoxStream<T>> {
    fn until_sent(self, lock: Finished<'_>) -> (Self, Option<LockGuard>) {
        lock.until_end(self, |response, guard| {
            response.map(|stream| Box::pin(guard.hold_during(stream)) as BoxStream<T>)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        error::{KnownHolder, LeaseLost, Repeat},
        key::LockKey,
    };

    fn busy(retry_after: Option<Duration>) -> Status {
        let key = LockKey::new("secret-key");
        Status::from(LockError::busy(&key, retry_after, KnownHolder::default()))
    }

    #[test]
    fn each_failure_has_its_code_and_no_message_names_a_key_or_a_source() {
        let key = LockKey::new("secret-key");
        let statuses = [
            busy(None),
            Status::from(LockError::lost(&key, LeaseLost::Expired, None)),
            Status::from(LockError::unavailable("secret-source").about(&key)),
            Status::from(LockError::invalid("secret-reason").about(&key)),
            Status::from(LockError::NotConfigured),
        ];
        let codes = statuses.each_ref().map(Status::code);
        let expected = [
            Code::Aborted,
            Code::Unavailable,
            Code::Unavailable,
            Code::Internal,
            Code::Internal,
        ];
        assert_eq!(codes, expected);
        for status in statuses {
            assert!(!format!("{status:?}").contains("secret"), "{status:?}");
        }
    }

    #[test]
    fn a_retry_policy_does_not_retry_a_refused_repeat() {
        let code = |reason| {
            let key = LockKey::new("secret-key");
            let error = LockError::Repeated { key, reason };
            let status = Status::from(error);
            assert!(status.metadata().is_empty());
            status.code()
        };
        assert_eq!(code(Repeat::OtherRequest), Code::InvalidArgument);
        assert_eq!(code(Repeat::NotKept), Code::AlreadyExists);
    }

    #[test]
    fn a_busy_lock_pushes_back_for_one_to_ten_seconds() {
        let pushback = |wait| {
            let status = busy(wait);
            let pushback = status.metadata().get(PUSHBACK)?;
            Some(pushback.to_str().expect("a number").to_owned())
        };
        assert_eq!(pushback(None), None);
        assert_eq!(pushback(Some(Duration::ZERO)).as_deref(), Some("1000"));
        let wait = Duration::from_micros(1_500_100);
        assert_eq!(pushback(Some(wait)).as_deref(), Some("2000"));
        assert_eq!(pushback(Some(Duration::MAX)).as_deref(), Some("10000"));
    }
}
