//! Which connections a request left on, so that a clean-up knows when it may stop.
//!
//! Requests on one connection are executed in their order. So once a release has a reply on the connection that carried the
//! acquire, no copy of the acquire can take the key any more. A copy that left on another connection may still be in a socket,
//! and take the key after the release. Then the release is repeated until the lease would have ended by itself.

use std::sync::atomic::{AtomicU64, Ordering};
#[cfg(feature = "redlock")]
use std::{any::Any, sync::OnceLock};

/// One connection to the backend, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionId(u64);

impl ConnectionId {
    /// The only "connection" of a backend inside this process.
    pub(crate) const LOCAL: Self = Self(1);

    /// The connections to all servers of a backend that has several: each server has replied on its own, and no copy is in flight.
    #[cfg(feature = "redlock")]
    pub(crate) const ALL: Self = Self(u64::MAX - 1);

    /// The connections to some of the servers: on the others a request may still be in flight, or have been executed.
    #[cfg(feature = "redlock")]
    pub(crate) const SOME: Self = Self(u64::MAX - 2);

    /// A number that no other connection of this process has, to whatever server, inherited connections after a fork included.
    #[cfg(feature = "redis")]
    pub(crate) fn next() -> Self {
        // The first ones are those of tests and of backends inside the process.
        static LAST: AtomicU64 = AtomicU64::new(1 << 16);
        Self(LAST.fetch_add(1, Ordering::Relaxed))
    }

    /// Whether a reply on it is the reply of every server that may have a part of the lock.
    #[cfg_attr(
        not(feature = "redlock"),
        expect(clippy::unused_self, reason = "the other build needs it")
    )]
    pub(crate) fn is_of_all_servers(self) -> bool {
        #[cfg(feature = "redlock")]
        if self == Self::SOME {
            return false;
        }
        true
    }

    /// `number` must be small, and not zero.
    #[cfg(all(test, feature = "redis"))]
    pub(crate) const fn new(number: u64) -> Self {
        Self(number)
    }
}

/// The connections that requests with one owner token left on: none, one, or several.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    connection: AtomicU64,
    /// What a store with several servers records for each of them.
    #[cfg(feature = "redlock")]
    beside: OnceLock<Box<dyn Any + Send + Sync>>,
}

const NONE: u64 = 0;

const SEVERAL: u64 = u64::MAX;

impl InFlight {
    /// Notes that a request leaves on a connection. Called before the first byte leaves. Requests with one token are sent one
    /// after the other.
    pub(crate) fn note_sent_on(&self, connection: ConnectionId) {
        let before = self.connection.load(Ordering::Acquire);
        let after = if before == NONE || before == connection.0 {
            connection.0
        } else {
            SEVERAL
        };
        self.connection.store(after, Ordering::Release);
    }

    /// Whether no request has left yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.connection.load(Ordering::Acquire) == NONE
    }

    /// Forgets the requests that left: all of them have a definite reply.
    pub(crate) fn note_all_answered(&self) {
        self.connection.store(NONE, Ordering::Release);
    }

    /// The only connection with a request that is not settled.
    pub(crate) fn only_connection(&self) -> Option<ConnectionId> {
        let connection = self.connection.load(Ordering::Acquire);
        (connection != NONE && connection != SEVERAL).then_some(ConnectionId(connection))
    }

    /// Whether everything that is not settled left on one connection.
    pub(crate) fn is_on_one_connection(&self) -> bool {
        self.connection.load(Ordering::Acquire) != SEVERAL
    }

    /// Whether the requests left on one connection to one server, which executes later what is sent there later.
    pub(crate) fn is_ordered(&self) -> bool {
        let connection = self.connection.load(Ordering::Acquire);
        #[cfg(feature = "redlock")]
        if [ConnectionId::ALL, ConnectionId::SOME].contains(&ConnectionId(connection)) {
            return false;
        }
        connection != NONE && connection != SEVERAL
    }

    /// Whether a reply on `connection` means that every request that left was executed or never will be.
    pub(crate) fn is_settled_by(&self, connection: ConnectionId) -> bool {
        #[cfg(feature = "redlock")]
        if connection == ConnectionId::SOME {
            return false;
        }
        let in_flight = self.connection.load(Ordering::Acquire);
        in_flight == NONE || in_flight == connection.0
    }

    /// The record of a store with several servers. A store has one type of record.
    #[cfg(feature = "redlock")]
    pub(crate) fn beside<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> &T {
        let beside = self.beside.get_or_init(|| Box::new(make()));
        beside.downcast_ref().expect("a store notes one kind")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_settles_only_what_left_on_its_own_connection() {
        let (first, second) = (ConnectionId(1), ConnectionId(2));
        let in_flight = InFlight::default();
        assert!(in_flight.is_empty() && in_flight.is_settled_by(second));
        in_flight.note_sent_on(first);
        in_flight.note_sent_on(first);
        assert!(in_flight.is_settled_by(first) && !in_flight.is_settled_by(second));
        in_flight.note_sent_on(second);
        assert!(!in_flight.is_settled_by(first) && !in_flight.is_settled_by(second));
    }
}
