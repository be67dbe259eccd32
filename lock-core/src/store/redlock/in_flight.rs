//! The requests that left for one of several servers, so that a release knows where it has to be repeated.

use crate::{
    runtime::mutex::Mutex,
    store::{
        ReleaseOutcome,
        in_flight::{ConnectionId, InFlight},
    },
};

/// The requests that left for one of several servers with one owner token, and whether they have been undone.
///
/// A voting round ends with the majority's reply. Requests to the other servers stay in flight. Unless a release knows of them,
/// they may take the key there after the release has its reply. So each request that may take a key is a [`PendingRequest`]. None
/// begins once the release has begun, and the release is repeated at each server with a request that was not over.
#[derive(Debug, Default)]
pub(crate) struct ServerInFlight {
    pub(crate) in_flight: InFlight,
    pending: Mutex<PendingRequests>,
}

#[derive(Debug, Default)]
struct PendingRequests {
    open: u32,
    /// Whether a request left and is over.
    left: bool,
    /// Whether the release has begun.
    closed: bool,
    released: Option<ReleaseOutcome>,
}

/// A request that may take the key of one server, from before it leaves until its reply.
#[derive(Debug)]
pub(crate) struct PendingRequest<'a>(&'a ServerInFlight);

/// What a release has to do at one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleaseDuty {
    /// Nothing: the key was released, for good, or no request ever left for this server.
    Over(ReleaseOutcome),
    /// To send a release. Its reply is final, if it comes on the right connection.
    ReleaseOnce,
    /// To send a release, and to repeat it: a request that may take the key was not over.
    ReleaseAgain,
}

/// The records of this many servers.
pub(crate) fn of_servers(in_flight: &InFlight, servers: usize) -> &[ServerInFlight] {
    let make =
        || -> Box<[ServerInFlight]> { (0..servers).map(|_| ServerInFlight::default()).collect() };
    in_flight.beside(make)
}

impl ServerInFlight {
    /// Begins a request that may take the key; `None` if no request may leave any more.
    pub(crate) fn begin_request(&self) -> Option<PendingRequest<'_>> {
        let mut pending = self.pending.lock();
        if pending.closed {
            return None;
        }
        pending.open += 1;
        Some(PendingRequest(self))
    }

    /// Whether every request has a definite reply.
    pub(crate) fn is_settled(&self) -> bool {
        self.pending.lock().open == 0 && self.in_flight.is_empty()
    }

    /// Whether a request may have left, ever.
    pub(crate) fn was_used(&self) -> bool {
        let pending = self.pending.lock();
        pending.left || pending.open > 0
    }

    /// Begins the release, or goes on with it: no request begins any more.
    pub(crate) fn begin_release(&self) -> ReleaseDuty {
        let mut pending = self.pending.lock();
        pending.closed = true;
        match pending.released {
            Some(outcome) => ReleaseDuty::Over(outcome),
            None if pending.open > 0 => ReleaseDuty::ReleaseAgain,
            None if !pending.left => ReleaseDuty::Over(ReleaseOutcome::NotOurs),
            None => ReleaseDuty::ReleaseOnce,
        }
    }

    /// Notes the reply to a release that was sent for this duty.
    pub(crate) fn note_released(
        &self,
        duty: ReleaseDuty,
        connection: ConnectionId,
        outcome: ReleaseOutcome,
    ) {
        if duty == ReleaseDuty::ReleaseOnce && self.in_flight.is_settled_by(connection) {
            self.pending.lock().released = Some(outcome);
        }
    }
}

impl PendingRequest<'_> {
    /// Notes that the request has a reply. The reply settles earlier requests on the same connection, too.
    pub(crate) fn answered(self, connection: ConnectionId) {
        let mut pending = self.0.pending.lock();
        pending.left = true;
        // Another request that is in flight waits for its own reply.
        if pending.open == 1 && self.0.in_flight.is_settled_by(connection) {
            self.0.in_flight.note_all_answered();
        }
    }
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        let mut pending = self.0.pending.lock();
        pending.open -= 1;
        pending.left |= !self.0.in_flight.is_empty();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: ConnectionId = ConnectionId::new(1);
    const SECOND: ConnectionId = ConnectionId::new(2);

    #[test]
    fn nothing_is_released_where_nothing_left() {
        let record = ServerInFlight::default();
        drop(record.begin_request());
        assert!(record.is_settled() && !record.was_used());
        assert_eq!(
            record.begin_release(),
            ReleaseDuty::Over(ReleaseOutcome::NotOurs)
        );
        assert!(record.begin_request().is_none(), "the release has begun");
    }

    #[test]
    fn a_release_is_repeated_while_a_request_is_under_way() {
        let record = ServerInFlight::default();
        let pending = record.begin_request().expect("open");
        record.in_flight.note_sent_on(FIRST);
        let duty = record.begin_release();
        assert_eq!(duty, ReleaseDuty::ReleaseAgain);
        record.note_released(duty, FIRST, ReleaseOutcome::NotOurs);
        pending.answered(FIRST);
        let duty = record.begin_release();
        assert_eq!(duty, ReleaseDuty::ReleaseOnce);
        record.note_released(duty, SECOND, ReleaseOutcome::Released);
        assert_eq!(
            record.begin_release(),
            ReleaseDuty::Over(ReleaseOutcome::Released)
        );
    }

    #[test]
    fn a_request_without_an_answer_is_released_on_its_own_connection_alone() {
        let record = ServerInFlight::default();
        let pending = record.begin_request().expect("open");
        record.in_flight.note_sent_on(FIRST);
        drop(pending);
        assert!(!record.is_settled());
        record.note_released(record.begin_release(), SECOND, ReleaseOutcome::Released);
        assert_eq!(record.begin_release(), ReleaseDuty::ReleaseOnce);
        record.note_released(record.begin_release(), FIRST, ReleaseOutcome::Released);
        assert_eq!(
            record.begin_release(),
            ReleaseDuty::Over(ReleaseOutcome::Released)
        );
    }

    #[test]
    fn the_answer_to_an_earlier_request_says_nothing_of_a_later_one() {
        let record = ServerInFlight::default();
        let (earlier, later) = (
            record.begin_request().expect("open"),
            record.begin_request().expect("open"),
        );
        record.in_flight.note_sent_on(FIRST);
        earlier.answered(FIRST);
        assert!(!record.is_settled());
        later.answered(FIRST);
        assert!(record.is_settled());
    }

    #[test]
    fn an_answer_of_some_servers_settles_nothing() {
        let in_flight = InFlight::default();
        assert!(!in_flight.is_settled_by(ConnectionId::SOME));
        in_flight.note_sent_on(ConnectionId::ALL);
        assert!(in_flight.is_settled_by(ConnectionId::ALL) && in_flight.is_on_one_connection());
    }
}
