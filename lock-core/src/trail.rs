//! Which connections a request left on, so that a clean-up knows when it may stop.
//!
//! Requests on one connection are executed in their order. So once a release has been answered on the connection that
//! carried the acquire, no copy of the acquire can take the key any more. A copy that left on another connection may
//! still be in a socket, and take the key after the release: then the release is repeated until the lease would have
//! ended by itself.

use std::sync::atomic::{AtomicU64, Ordering};
#[cfg(feature = "redis")]
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

#[cfg(feature = "redis")]
use crate::backend::ReleaseOutcome;

/// One connection to the backend, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionId(u64);

impl ConnectionId {
    /// The only "connection" of a backend inside this process.
    pub(crate) const LOCAL: Self = Self(1);

    /// Those to all servers of a backend that has several: each has answered on its own, and no copy is astray.
    #[cfg(feature = "redis")]
    pub(crate) const ALL: Self = Self(u64::MAX - 1);

    /// Those to some of the servers: on the others something may still be under way, or have been done.
    #[cfg(feature = "redis")]
    pub(crate) const SOME: Self = Self(u64::MAX - 2);

    /// One that no other connection of this process has, to whatever server, those that it inherited by a fork included.
    #[cfg(feature = "redis")]
    pub(crate) fn next() -> Self {
        // The first ones are those of tests and of backends inside the process.
        static LAST: AtomicU64 = AtomicU64::new(1 << 16);
        Self(LAST.fetch_add(1, Ordering::Relaxed))
    }

    /// `number` must not be zero, and small.
    #[cfg(all(test, feature = "redis"))]
    pub(crate) const fn new(number: u64) -> Self {
        Self(number)
    }
}

/// The connections that requests with one owner token left on: none, one, or several.
#[derive(Debug, Default)]
pub(crate) struct Trail {
    connection: AtomicU64,
    /// The same for each server, where a backend has several.
    #[cfg(feature = "redis")]
    tracks: OnceLock<Box<[Track]>>,
}

const NONE: u64 = 0;
const SEVERAL: u64 = u64::MAX;

impl Trail {
    /// Notes a departure. Called before the first byte leaves, by whoever sends with this token, one
    /// after the other.
    pub(crate) fn departs_on(&self, connection: ConnectionId) {
        let before = self.connection.load(Ordering::Acquire);
        let after = if before == NONE || before == connection.0 {
            connection.0
        } else {
            SEVERAL
        };
        self.connection.store(after, Ordering::Release);
    }

    /// Whether nothing has left yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.connection.load(Ordering::Acquire) == NONE
    }

    /// Forgets what left: all of it has a definite answer.
    pub(crate) fn settle(&self) {
        self.connection.store(NONE, Ordering::Release);
    }

    /// The only connection that something left on which is not settled.
    #[cfg(feature = "redis")]
    pub(crate) fn single(&self) -> Option<ConnectionId> {
        let connection = self.connection.load(Ordering::Acquire);
        (connection != NONE && connection != SEVERAL).then_some(ConnectionId(connection))
    }

    /// Whether everything that is not settled left on one connection.
    pub(crate) fn is_single(&self) -> bool {
        self.connection.load(Ordering::Acquire) != SEVERAL
    }

    /// Whether an answer on `connection` means that every request that left was executed or never will be.
    pub(crate) fn is_settled_by(&self, connection: ConnectionId) -> bool {
        #[cfg(feature = "redis")]
        if connection == ConnectionId::SOME {
            return false;
        }
        let trail = self.connection.load(Ordering::Acquire);
        trail == NONE || trail == connection.0
    }

    /// What left for each of `servers` servers.
    #[cfg(feature = "redis")]
    pub(crate) fn tracks(&self, servers: usize) -> &[Track] {
        self.tracks
            .get_or_init(|| (0..servers).map(|_| Track::default()).collect())
    }
}

/// What left for one of several servers with one owner token, and whether it has been taken back.
///
/// A round over several servers ends with the majority's word. What is under way to the others goes on, and may take the
/// key there after a release was answered, unless the release knows of it. So each request that may take a key is a
/// [`Visit`]: none begins once the release has begun, and the release is repeated where one was not over.
#[cfg(feature = "redis")]
#[derive(Debug, Default)]
pub(crate) struct Track {
    pub(crate) trail: Trail,
    visits: Mutex<Visits>,
}

#[cfg(feature = "redis")]
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
#[cfg(feature = "redis")]
#[derive(Debug)]
pub(crate) struct Visit<'a>(&'a Track);

/// What a release has to do at one server.
#[cfg(feature = "redis")]
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

#[cfg(feature = "redis")]
impl Duty {
    pub(crate) fn is_open(self) -> bool {
        matches!(self, Self::Ask | Self::AskAgain)
    }
}

#[cfg(feature = "redis")]
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

#[cfg(feature = "redis")]
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

#[cfg(feature = "redis")]
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

#[cfg(all(test, feature = "redis"))]
mod track_tests {
    use super::*;

    const FIRST: ConnectionId = ConnectionId(1);
    const SECOND: ConnectionId = ConnectionId(2);

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
