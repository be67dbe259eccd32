//! Why a wait has ended without the lock.

use std::time::Duration;

use crate::{
    error::LockError,
    key::{Busy, LockKey},
    runtime::clock::Moment,
    store::Failure,
};

#[derive(Clone, Debug)]
pub(crate) enum Refusal {
    /// Busy until then, unless it is renewed or released; `None`: without an expiry.
    Busy(Option<Moment>),
    Failed(Failure),
    /// A round trip took more than half of the ttl.
    TooSlow {
        took: Duration,
        ttl: Duration,
    },
    Closed,
}

impl Refusal {
    /// `busy`: what the process knows of a busy lock.
    pub(crate) fn into_error(self, key: &LockKey, now: Moment, busy: Busy) -> LockError {
        match self {
            Self::Busy(until) => {
                LockError::busy(key, until.map(|until| until.since(now)), busy)
            }
            Self::Failed(failure) => LockError::from(failure).about(key),
            Self::TooSlow { took, ttl } => LockError::invalid(format!(
                "a round trip to the backend took {took:?}, more than half of the ttl of {ttl:?}: choose a longer ttl"
            ))
            .about(key),
            Self::Closed => LockError::unavailable("this lock manager was shut down").about(key),
        }
    }
}
