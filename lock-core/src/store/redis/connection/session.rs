//! The connections to one server over time, as a state machine without a socket: which one there is, and when the next one is made.
//!
//! At most one is being made at a time, and all callers wait for that one. After a failure, the next one waits for a moment, so that
//! many callers do not flood a server that is down. Connections that end as soon as they are made count as a failure.

use std::{sync::Arc, time::Duration};

use tokio::sync::SetOnce;

use crate::{
    runtime::clock::Moment,
    store::{Failure, redis::connection::reachability::Reachability},
};

/// After a failed connect the next one waits this long.
const RECONNECT_PAUSE: Duration = Duration::from_millis(50);

/// This many connections in a row may end within `RECONNECT_PAUSE`; the next one counts as a failure, too. Each new connection
/// causes renewals of the held locks. A server or proxy that closes connections because of them would be flooded.
const MOST_SHORT_LIVED: u32 = 3;

/// A connection that is being made; each caller that needs it waits within its own time-out. They are woken in the order in which
/// they came.
pub(super) type Attempt<C> = SetOnce<Result<C, Failure>>;

/// What a caller that needs a connection does.
#[derive(Debug)]
pub(super) enum Wanted<C> {
    /// There is a connection by now, or none is to be made yet.
    Known(Result<C, Failure>),
    /// It waits for this one.
    Wait(Arc<Attempt<C>>),
    /// It waits for this one, and begins it.
    Begin(Arc<Attempt<C>>),
}

#[derive(Debug)]
pub(super) struct Session<C> {
    current: Option<C>,
    /// When the last connection was made.
    since: Option<Moment>,
    /// How many connections in a row broke as soon as they were made.
    short_lived: u32,
    last_failure: Option<(Moment, Failure)>,
    attempt: Option<Arc<Attempt<C>>>,
    pub(super) reachability: Reachability,
}

impl<C> Default for Session<C> {
    fn default() -> Self {
        Self {
            current: None,
            since: None,
            short_lived: 0,
            last_failure: None,
            attempt: None,
            reachability: Reachability::default(),
        }
    }
}

impl<C: Clone> Session<C> {
    pub(super) fn current(&self) -> Option<&C> {
        self.current.as_ref()
    }

    /// A caller needs a connection, and saw none. It looks again here: a connection that carries requests is not to be replaced.
    pub(super) fn wanted(&mut self, now: Moment) -> Wanted<C> {
        if let Some(current) = &self.current {
            return Wanted::Known(Ok(current.clone()));
        }
        if let Some((at, failure)) = &self.last_failure
            && now.since(*at) < RECONNECT_PAUSE
        {
            return Wanted::Known(Err(failure.clone()));
        }
        if let Some(attempt) = &self.attempt {
            return Wanted::Wait(attempt.clone());
        }
        let attempt = self.attempt.insert(Arc::default());
        Wanted::Begin(attempt.clone())
    }

    /// A connection was made. There was none when its attempt began, and there is one attempt at a time.
    pub(super) fn made(&mut self, connection: C, now: Moment) {
        self.current = Some(connection);
        self.since = Some(now);
    }

    /// The attempt is over. `failure`: why it made no connection.
    pub(super) fn ended(&mut self, failure: Option<Failure>, now: Moment) {
        self.attempt = None;
        self.last_failure = failure.map(|failure| (now, failure));
    }

    /// Takes the connection away if it is meant. Returns it. `broken`: the failure of connections that break at once.
    pub(super) fn take_if(
        &mut self,
        is_meant: impl FnOnce(&C) -> bool,
        now: Moment,
        broken: impl FnOnce() -> Failure,
    ) -> Option<C> {
        let taken = self.current.take_if(|current| is_meant(current))?;
        let is_short = |since| now.since(since) < RECONNECT_PAUSE;
        self.short_lived = if self.since.is_some_and(is_short) {
            self.short_lived + 1
        } else {
            0
        };
        if self.short_lived > MOST_SHORT_LIVED {
            self.last_failure = Some((now, broken()));
        }
        Some(taken)
    }

    /// The server replied that it is of no use now.
    pub(super) fn failed(&mut self, failure: Failure, now: Moment) {
        self.last_failure = Some((now, failure));
    }

    /// Whether there ever was a connection.
    pub(super) fn has_connected(&self) -> bool {
        self.since.is_some()
    }

    /// Whether there is no connection, none is being made, and none was tried in this time.
    pub(super) fn is_to_be_made(&self, pause: Duration, now: Moment) -> bool {
        let failed = self.last_failure.as_ref().map(|(at, _)| *at);
        let mut tried = failed.into_iter().chain(self.since);
        let is_early = tried.any(|at| now.since(at) < pause);
        self.current.is_none() && self.attempt.is_none() && !is_early
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection with a number.
    #[derive(Clone, Debug)]
    struct Fake(u32);

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(0).after(Duration::from_millis(millis))
    }

    fn broken() -> Failure {
        Failure::not_now("they break")
    }

    fn begun(session: &mut Session<Fake>, now: Moment) -> Arc<Attempt<Fake>> {
        match session.wanted(now) {
            Wanted::Begin(attempt) => attempt,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn all_callers_wait_for_one_attempt() {
        let mut session = Session::default();
        let first = begun(&mut session, at(0));
        let Wanted::Wait(second) = session.wanted(at(1)) else {
            panic!("a second attempt");
        };
        assert!(Arc::ptr_eq(&first, &second));
        assert!(first.set(Ok(Fake(1))).is_ok(), "the first result");
        assert!(second.set(Err(broken())).is_err(), "which stays");
    }

    #[test]
    fn after_a_failure_the_next_attempt_waits_for_a_moment() {
        let mut session = Session::<Fake>::default();
        begun(&mut session, at(0));
        session.ended(Some(broken()), at(10));
        let refused = session.wanted(at(59));
        assert!(matches!(refused, Wanted::Known(Err(_))), "{refused:?}");
        assert!(!session.is_to_be_made(Duration::from_secs(1), at(1009)));
        assert!(session.is_to_be_made(Duration::from_secs(1), at(1010)));
        begun(&mut session, at(60));
        assert!(!session.is_to_be_made(Duration::from_secs(1), at(5000)));
    }

    #[test]
    fn connections_that_end_as_soon_as_they_are_made_count_as_a_failure() {
        let mut session = Session::default();
        for number in 1..=MOST_SHORT_LIVED + 1 {
            begun(&mut session, at(0));
            session.made(Fake(number), at(0));
            session.ended(None, at(0));
            let taken = session.take_if(|current| current.0 == number, at(1), broken);
            assert_eq!(taken.map(|taken| taken.0), Some(number));
        }
        let refused = session.wanted(at(2));
        assert!(matches!(refused, Wanted::Known(Err(_))), "{refused:?}");
        begun(&mut session, at(51));
        session.made(Fake(9), at(51));
        session.ended(None, at(51));
        session.take_if(|_| true, at(51 + 50), broken);
        begun(&mut session, at(51 + 50));
    }

    #[test]
    fn a_connection_that_lives_is_not_replaced_by_a_later_one() {
        let mut session = Session::default();
        begun(&mut session, at(0));
        session.made(Fake(1), at(0));
        let known = session.wanted(at(0));
        assert!(matches!(known, Wanted::Known(Ok(Fake(1)))), "{known:?}");
        session.ended(None, at(0));
        let known = session.wanted(at(1));
        assert!(matches!(known, Wanted::Known(Ok(Fake(1)))), "{known:?}");
        let other = session.take_if(|current| current.0 == 2, at(60), broken);
        assert!(other.is_none(), "it is another one");
        assert!(
            session
                .take_if(|current| current.0 == 1, at(60), broken)
                .is_some()
        );
        begun(&mut session, at(60));
    }

    #[test]
    fn one_task_at_a_time_makes_the_next_connection() {
        let mut session = Session::<Fake>::default();
        assert!(session.reachability.broke(at(0)));
        assert!(!session.reachability.broke(at(1)));
        assert!(session.reachability.failed());
        assert!(!session.reachability.failed(), "one line an outage");
        assert_eq!(
            session.reachability.returned(at(30)),
            Some(Duration::from_millis(30))
        );
        session.reachability.returns_no_more();
        assert!(session.reachability.broke(at(40)));
    }
}
