//! Why a wait has ended without the lock.

use std::{sync::Arc, time::Duration};

use crate::{
    error::{HeldBy, LockError},
    key::{Busy, LockKey},
    runtime::clock::Moment,
    store::Failure,
};

#[derive(Clone, Debug)]
pub(crate) enum Refusal {
    Busy {
        /// When the lock ends, unless it is renewed or released; `None`: it has no expiry.
        until: Option<Moment>,
        /// The label of a holder of another process, if known.
        holder: Option<Arc<str>>,
    },
    Failed(Failure),
    /// A round trip took more than half of the ttl.
    TooSlow {
        took: Duration,
        ttl: Duration,
    },
    Closed,
}

impl Refusal {
    /// The lock is busy until then, by what this process knows.
    pub(crate) fn busy_until(until: Moment) -> Self {
        Self::Busy {
            until: Some(until),
            holder: None,
        }
    }

    /// `busy`: what the process knows of a busy lock.
    pub(crate) fn into_error(self, key: &LockKey, now: Moment, mut busy: Busy) -> LockError {
        match self {
            Self::Busy { until, holder } => {
                // What is known of a holder in this process is newer than the reply of the server.
                let held_by = busy.held_by.take();
                busy.held_by = held_by.or_else(|| holder.map(HeldBy::OtherProcess));
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
