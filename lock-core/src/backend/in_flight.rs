//! Which connections a request left on, so that a clean-up knows when it may stop.
//!
//! Requests on one connection are executed in their order. So once a release has a reply on the connection that carried the
//! acquire, no copy of the acquire can get the key any more. A copy that left on another connection may still be in a socket,
//! and get the key after the release. Then the release is repeated until the lease would have ended by itself.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use crate::runtime::tally::{Open, Tally};

/// One connection to the backend, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionId(u64);

impl ConnectionId {
    /// The only "connection" of a backend inside this process.
    pub(crate) const LOCAL: Self = Self(1);

    /// A number that no other connection of this process has, to whatever server.
    pub(crate) fn next() -> Self {
        // The first ones are those of tests and of backends inside the process.
        static LAST: AtomicU64 = AtomicU64::new(1 << 16);
        Self(LAST.fetch_add(1, Ordering::Relaxed))
    }

    /// `number` must be small, and not zero.
    #[cfg(all(test, feature = "redis"))]
    pub(crate) const fn new(number: u64) -> Self {
        Self(number)
    }
}

/// The connections that requests with one owner token left on: none, one, or several.
#[derive(Debug, Default)]
pub(crate) struct InFlight(AtomicU64);

const NONE: u64 = 0;

const SEVERAL: u64 = u64::MAX;

impl InFlight {
    /// Notes that a request leaves on a connection. Called before the first byte leaves. Requests with one token are sent one
    /// after the other.
    pub(crate) fn note_sent_on(&self, connection: ConnectionId) {
        let before = self.0.load(Ordering::Acquire);
        let after = if before == NONE || before == connection.0 {
            connection.0
        } else {
            SEVERAL
        };
        self.0.store(after, Ordering::Release);
    }

    /// Whether no request has left yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.load(Ordering::Acquire) == NONE
    }

    /// Forgets the requests that left: all of them have a definite reply.
    pub(crate) fn note_all_answered(&self) {
        self.0.store(NONE, Ordering::Release);
    }

    /// The only connection with a request that is not settled.
    pub(crate) fn only_connection(&self) -> Option<ConnectionId> {
        let connection = self.0.load(Ordering::Acquire);
        (connection != NONE && connection != SEVERAL).then_some(ConnectionId(connection))
    }

    /// Whether everything that is not settled left on one connection.
    pub(crate) fn is_on_one_connection(&self) -> bool {
        self.0.load(Ordering::Acquire) != SEVERAL
    }

    /// Whether a reply on `connection` means that every request that left was executed or never will be.
    pub(crate) fn is_settled_by(&self, connection: ConnectionId) -> bool {
        let in_flight = self.0.load(Ordering::Acquire);
        in_flight == NONE || in_flight == connection.0
    }
}

/// What is in flight to one of several servers.
///
/// A voting round ends with the majority's reply. Requests to the other servers stay in flight, and may be granted the key there
/// later. So each of them is [`UnderWay`] until its reply, or its time-out. The release at a server begins when none is under way
/// any more.
///
/// All of it runs on the manager's thread.
#[derive(Debug, Default)]
pub(crate) struct ServerInFlight {
    /// The connections of requests that are over, and had no reply.
    pub(crate) in_flight: InFlight,
    /// Those of the tries of the release.
    pub(crate) released_on: InFlight,
    under_way: Arc<Tally>,
    /// Whether the server took the key for a request that is over, or may have done so.
    took: AtomicBool,
    is_closed: AtomicBool,
}

/// A request that may be granted the key at one of several servers.
#[derive(Debug)]
pub(crate) struct UnderWay {
    server: Arc<ServerInFlight>,
    pub(crate) in_flight: InFlight,
    _open: Open,
}

impl ServerInFlight {
    pub(crate) fn begin(self: &Arc<Self>) -> UnderWay {
        UnderWay {
            server: self.clone(),
            in_flight: InFlight::default(),
            _open: self.under_way.open(),
        }
    }

    /// Whether the server has the key, may have it, or may take it.
    pub(crate) fn may_hold(&self) -> bool {
        self.took.load(Ordering::Acquire) || self.under_way.count() > 0
    }

    /// Begins the release: no request leaves from now on. Waits for those that have left, until their time-outs at the longest.
    /// Returns whether there is anything to release.
    pub(crate) async fn close(&self) -> bool {
        self.is_closed.store(true, Ordering::Release);
        self.under_way.emptied().await;
        self.may_hold()
    }
}

impl UnderWay {
    /// Whether the request may be sent: not after the release has begun.
    pub(crate) fn may_leave(&self) -> bool {
        !self.server.is_closed.load(Ordering::Acquire)
    }

    /// Notes the reply, and whether the server took the key.
    pub(crate) fn answered(self, connection: ConnectionId, took: bool) {
        self.in_flight.note_all_answered();
        self.server.took.fetch_or(took, Ordering::AcqRel);
        // It also settles earlier requests on the same connection. Another one that is in flight waits for its own reply.
        let in_flight = &self.server.in_flight;
        if self.server.under_way.count() == 1 && in_flight.is_settled_by(connection) {
            in_flight.note_all_answered();
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if !self.in_flight.is_empty() {
            let left_on = self.in_flight.0.load(Ordering::Acquire);
            self.server.in_flight.note_sent_on(ConnectionId(left_on));
            self.server.took.store(true, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_settles_only_what_left_on_its_own_connection() {
        let (first, second) = (ConnectionId(1), ConnectionId(2));
        let in_flight = InFlight::default();
        assert!(in_flight.is_empty() && in_flight.is_settled_by(second));
        in_flight.note_sent_on(first);
        in_flight.note_sent_on(first);
        assert!(in_flight.is_settled_by(first) && !in_flight.is_settled_by(second));
        in_flight.note_sent_on(second);
        assert!(!in_flight.is_settled_by(first) && !in_flight.is_settled_by(second));
    }

    #[tokio::test]
    async fn nothing_is_released_at_a_server_to_which_nothing_left() {
        let server = Arc::<ServerInFlight>::default();
        drop(server.begin());
        assert!(!server.may_hold() && !server.close().await);
        assert!(!server.begin().may_leave(), "the release has begun");
    }

    #[tokio::test]
    async fn a_release_at_a_server_waits_for_what_is_under_way_there() {
        let server = Arc::<ServerInFlight>::default();
        let under_way = server.begin();
        under_way.in_flight.note_sent_on(ConnectionId(1));
        assert!(server.may_hold());
        let closed = tokio::spawn({
            let server = server.clone();
            async move { server.close().await }
        });
        tokio::task::yield_now().await;
        assert!(!closed.is_finished() && !server.begin().may_leave());
        under_way.answered(ConnectionId(1), true);
        assert!(closed.await.expect("no panic"));
        assert!(server.in_flight.is_empty());
    }

    #[tokio::test]
    async fn the_reply_to_one_request_says_nothing_of_another_one() {
        let (server, first) = (Arc::<ServerInFlight>::default(), ConnectionId(1));
        let (refused, lost) = (server.begin(), server.begin());
        refused.in_flight.note_sent_on(first);
        lost.in_flight.note_sent_on(first);
        refused.answered(first, false);
        drop(lost);
        assert!(server.close().await);
        assert!(!server.in_flight.is_empty() && server.in_flight.is_settled_by(first));
        // The next one on that connection is executed behind it.
        let next = server.begin();
        next.in_flight.note_sent_on(first);
        next.answered(first, false);
        assert!(server.in_flight.is_empty() && server.may_hold());
    }
}
