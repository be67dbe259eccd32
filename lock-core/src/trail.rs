//! Which connections a request left on, so that a clean-up knows when it may stop.
//!
//! Requests on one connection are executed in their order. So once a release has been answered on the connection that
//! carried the acquire, no copy of the acquire can take the key any more. A copy that left on another connection may
//! still be in a socket, and take the key after the release: then the release is repeated until the lease would have
//! ended by itself.

use std::sync::atomic::{AtomicU64, Ordering};

/// One connection to the backend, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionId(u64);

impl ConnectionId {
    /// The only "connection" of a backend inside this process.
    pub(crate) const LOCAL: Self = Self(1);

    /// `number` must not be zero.
    #[cfg(feature = "redis")]
    pub(crate) const fn new(number: u64) -> Self {
        Self(number)
    }
}

/// The connections that requests with one owner token left on: none, one, or several.
#[derive(Debug, Default)]
pub(crate) struct Trail(AtomicU64);

const NONE: u64 = 0;
const SEVERAL: u64 = u64::MAX;

impl Trail {
    /// Notes a departure. Called before the first byte leaves, only by the one task that sends with this token.
    pub(crate) fn departs_on(&self, connection: ConnectionId) {
        let before = self.0.load(Ordering::Acquire);
        let after = if before == NONE || before == connection.0 {
            connection.0
        } else {
            SEVERAL
        };
        self.0.store(after, Ordering::Release);
    }

    /// Whether nothing has left yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.load(Ordering::Acquire) == NONE
    }

    /// Forgets what left: all of it has a definite answer.
    pub(crate) fn settle(&self) {
        self.0.store(NONE, Ordering::Release);
    }

    /// Whether everything that is not settled left on one connection.
    pub(crate) fn is_single(&self) -> bool {
        self.0.load(Ordering::Acquire) != SEVERAL
    }

    /// Whether an answer on `connection` means that every request that left was executed or never will be.
    pub(crate) fn is_settled_by(&self, connection: ConnectionId) -> bool {
        let trail = self.0.load(Ordering::Acquire);
        trail == NONE || trail == connection.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_settles_only_what_left_on_its_own_connection() {
        let (first, second) = (ConnectionId(1), ConnectionId(2));
        let trail = Trail::default();
        assert!(trail.is_empty() && trail.is_settled_by(second));
        trail.departs_on(first);
        trail.departs_on(first);
        assert!(trail.is_settled_by(first) && !trail.is_settled_by(second));
        trail.departs_on(second);
        assert!(!trail.is_settled_by(first) && !trail.is_settled_by(second));
    }
}
