//! The orders on which a request was sent, so that the driver knows when it may stop repeating a release.
//!
//! Requests on one connection are executed in order, so once a release has a reply on the connection that carried the acquire,
//! no copy of the acquire can get the key any more. A copy that was sent on another connection may still be in a socket, and get
//! the key after the release. In that case, the release is repeated until the lease would have expired.

use std::sync::atomic::{AtomicU64, Ordering};

/// An order in which requests are executed, never reused. Once a reply on it has arrived, nothing that was sent on it earlier
/// still runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Order(u64);

/// A connection to a server, which executes requests in the order in which they were sent.
pub(crate) type ConnectionId = Order;

impl Order {
    /// The only order of a backend inside this process, and of several servers together.
    pub(crate) const LOCAL: Self = Self(1);

    /// Returns a number that no other connection of this process has, to any server.
    pub(crate) fn next() -> Self {
        // The first ones are reserved for tests and for backends inside the process.
        static LAST: AtomicU64 = AtomicU64::new(1 << 16);
        Self(LAST.fetch_add(1, Ordering::Relaxed))
    }

    /// Creates an order. `number` must be small, and not zero.
    #[cfg(all(test, feature = "redis"))]
    pub(crate) const fn new(number: u64) -> Self {
        Self(number)
    }
}

/// The connections on which requests with one owner token were sent: none, one, or several.
#[derive(Debug, Default)]
pub(crate) struct InFlight(AtomicU64);

const NONE: u64 = 0;

const SEVERAL: u64 = u64::MAX;

impl InFlight {
    /// Records that a request is sent on a connection. Called before the first byte is sent. Requests with one token are sent
    /// one after the other.
    pub(crate) fn note_sent_on(&self, connection: ConnectionId) {
        let before = self.0.load(Ordering::Acquire);
        let after = if before == NONE || before == connection.0 {
            connection.0
        } else {
            SEVERAL
        };
        self.0.store(after, Ordering::Release);
    }

    /// Returns `true` if no request has been sent yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.load(Ordering::Acquire) == NONE
    }

    /// Forgets the requests that were sent, because all of them have a definite reply.
    pub(crate) fn note_all_answered(&self) {
        self.0.store(NONE, Ordering::Release);
    }

    /// Returns the only connection with a request that is not settled.
    pub(crate) fn only_connection(&self) -> Option<ConnectionId> {
        let connection = self.0.load(Ordering::Acquire);
        (connection != NONE && connection != SEVERAL).then_some(Order(connection))
    }

    /// Returns `true` if everything that is not settled was sent on one connection.
    pub(crate) fn is_on_one_connection(&self) -> bool {
        self.0.load(Ordering::Acquire) != SEVERAL
    }

    /// Records an answer, which settles everything that was sent on its order. Returns whether every request that was sent has
    /// been executed or never will be.
    pub(crate) fn note_answer(&self, order: Option<Order>) -> bool {
        let is_settled = order.is_some_and(|order| self.is_settled_by(order));
        if is_settled {
            self.note_all_answered();
        }
        is_settled
    }

    /// Returns `true` if a reply on `connection` means that every request that was sent has been executed or never will be.
    pub(crate) fn is_settled_by(&self, connection: ConnectionId) -> bool {
        let in_flight = self.0.load(Ordering::Acquire);
        in_flight == NONE || in_flight == connection.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_settles_only_the_requests_on_its_own_connection() {
        let (first, second) = (Order(1), Order(2));
        let in_flight = InFlight::default();
        assert!(in_flight.is_empty() && in_flight.is_settled_by(second));
        in_flight.note_sent_on(first);
        in_flight.note_sent_on(first);
        assert!(in_flight.is_settled_by(first) && !in_flight.is_settled_by(second));
        in_flight.note_sent_on(second);
        assert!(!in_flight.is_settled_by(first) && !in_flight.is_settled_by(second));
    }
}
