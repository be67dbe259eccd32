//! What left for one of several servers, so that a release knows where it has to be repeated.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::store::ReleaseOutcome;
use crate::store::in_flight::{ConnectionId, Trail};

/// What left for one of several servers with one owner token, and whether it has been taken back.
///
/// A round over several servers ends with the majority's word. What is under way to the others goes on, and may take the
/// key there after a release was answered, unless the release knows of it. So each request that may take a key is a
/// [`Visit`]: none begins once the release has begun, and the release is repeated where one was not over.
#[derive(Debug, Default)]
pub(crate) struct Track {
    pub(crate) trail: Trail,
    visits: Mutex<Visits>,
}

#[derive(Debug, Default)]
struct Visits {
    open: u32,
    /// Whether a request left that is over.
    left: bool,
    /// Whether the release has begun.
    closed: bool,
    released: Option<ReleaseOutcome>,
}

/// A request that may take the key of one server, from before it leaves until its answer.
#[derive(Debug)]
pub(crate) struct Visit<'a>(&'a Track);

/// What a release has to do at one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Duty {
    /// Nothing ever left for it.
    Nothing,
    /// It was let go, for good.
    Done(ReleaseOutcome),
    /// To ask for it. Its answer is the last word, if it comes on the right connection.
    Ask,
    /// To ask for it, and to ask again: something that may take the key was not over.
    AskAgain,
}

impl Duty {
    pub(crate) fn is_open(self) -> bool {
        matches!(self, Self::Ask | Self::AskAgain)
    }
}

impl Track {
    /// Begins a request that may take the key; none is to leave any more if this is `None`.
    pub(crate) fn visit(&self) -> Option<Visit<'_>> {
        let mut visits = self.lock();
        if visits.closed {
            return None;
        }
        visits.open += 1;
        Some(Visit(self))
    }

    /// Whether every request has a definite answer.
    pub(crate) fn is_settled(&self) -> bool {
        self.lock().open == 0 && self.trail.is_empty()
    }

    /// Whether a request may have left, ever.
    pub(crate) fn is_touched(&self) -> bool {
        let visits = self.lock();
        visits.left || visits.open > 0
    }

    /// Begins the release, or goes on with it: no visit begins any more.
    pub(crate) fn close(&self) -> Duty {
        let mut visits = self.lock();
        visits.closed = true;
        match visits.released {
            Some(outcome) => Duty::Done(outcome),
            None if visits.open > 0 => Duty::AskAgain,
            None if !visits.left => Duty::Nothing,
            None => Duty::Ask,
        }
    }

    /// Notes the answer to a release that was sent for this duty.
    pub(crate) fn released(&self, duty: Duty, connection: ConnectionId, outcome: ReleaseOutcome) {
        if duty == Duty::Ask && self.trail.is_settled_by(connection) {
            self.lock().released = Some(outcome);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Visits> {
        self.visits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Visit<'_> {
    /// It was answered. That settles what left before it on the same connection, too.
    pub(crate) fn answered(self, connection: ConnectionId) {
        let mut visits = self.0.lock();
        visits.left = true;
        // Another one that is under way has its own answer to wait for.
        if visits.open == 1 && self.0.trail.is_settled_by(connection) {
            self.0.trail.settle();
        }
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        let mut visits = self.0.lock();
        visits.open -= 1;
        visits.left |= !self.0.trail.is_empty();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: ConnectionId = ConnectionId::new(1);
    const SECOND: ConnectionId = ConnectionId::new(2);

    #[test]
    fn nothing_is_released_where_nothing_left() {
        let track = Track::default();
        drop(track.visit());
        assert!(track.is_settled() && !track.is_touched());
        assert_eq!(track.close(), Duty::Nothing);
        assert!(track.visit().is_none(), "the release has begun");
    }

    #[test]
    fn a_release_is_repeated_while_a_request_is_under_way() {
        let track = Track::default();
        let visit = track.visit().expect("open");
        track.trail.departs_on(FIRST);
        let duty = track.close();
        assert_eq!(duty, Duty::AskAgain);
        track.released(duty, FIRST, ReleaseOutcome::NotOurs);
        visit.answered(FIRST);
        let duty = track.close();
        assert_eq!(duty, Duty::Ask);
        track.released(duty, SECOND, ReleaseOutcome::Done);
        assert_eq!(track.close(), Duty::Done(ReleaseOutcome::Done));
    }

    #[test]
    fn a_request_without_an_answer_is_released_on_its_own_connection_alone() {
        let track = Track::default();
        let visit = track.visit().expect("open");
        track.trail.departs_on(FIRST);
        drop(visit);
        assert!(!track.is_settled());
        track.released(track.close(), SECOND, ReleaseOutcome::Done);
        assert_eq!(track.close(), Duty::Ask);
        track.released(track.close(), FIRST, ReleaseOutcome::Done);
        assert_eq!(track.close(), Duty::Done(ReleaseOutcome::Done));
    }

    #[test]
    fn the_answer_to_an_earlier_request_says_nothing_of_a_later_one() {
        let track = Track::default();
        let (earlier, later) = (track.visit().expect("open"), track.visit().expect("open"));
        track.trail.departs_on(FIRST);
        earlier.answered(FIRST);
        assert!(!track.is_settled());
        later.answered(FIRST);
        assert!(track.is_settled());
    }

    #[test]
    fn an_answer_of_some_servers_settles_nothing() {
        let trail = Trail::default();
        assert!(!trail.is_settled_by(ConnectionId::SOME));
        trail.departs_on(ConnectionId::ALL);
        assert!(trail.is_settled_by(ConnectionId::ALL) && trail.is_single());
    }
}
