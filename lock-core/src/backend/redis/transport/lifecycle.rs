//! The connections to one server over time, as a state machine without a socket. It decides which connection is current, and
//! when the next one is made.
//!
//! At most one connection is being made at a time, and all callers wait for it. After a failure, there is a pause before the
//! next attempt, so that many callers do not flood a server that is down. Several connections in a row that end as soon as they
//! are made count as a failure.
//!
//! The log has one line when a server becomes unreachable, and one when it is reached again. A connection that breaks is
//! replaced at once, and the server counts as unreachable only if that fails: servers and proxies close idle connections,
//! which is not an outage.

use std::{mem, sync::Arc, time::Duration};

use tokio::sync::SetOnce;

use crate::{failure::Failure, moment::Moment};

/// The pause after a failed attempt to connect.
const RECONNECT_PAUSE: Duration = Duration::from_millis(50);

/// This many connections in a row may end within `RECONNECT_PAUSE`; the next one counts as a failure. Each new connection
/// causes renewals of the held locks, which would flood a server or proxy that closes connections because of them.
const MOST_SHORT_LIVED: u32 = 3;

/// A connection that is being made. Each caller that needs it waits within its own time-out, and the callers are woken in the
/// order in which they arrived.
pub(super) type Attempt<C> = SetOnce<Result<C, Failure>>;

/// The next step of a caller that needs a connection.
#[derive(Debug)]
pub(super) enum Wanted<C> {
    /// There is a connection by now, or it is too early to make one.
    Known(Result<C, Failure>),
    /// Wait for this attempt.
    Wait(Arc<Attempt<C>>),
    /// Begin this attempt, and wait for it.
    Begin(Arc<Attempt<C>>),
}

#[derive(Debug)]
pub(super) struct Lifecycle<C> {
    current: Option<C>,
    /// The time when the last connection was made.
    since: Option<Moment>,
    /// The number of connections in a row that broke as soon as they were made.
    short_lived: u32,
    last_failure: Option<(Moment, Failure)>,
    attempt: Option<Arc<Attempt<C>>>,
    pub(super) reachability: Reachability,
}

impl<C> Default for Lifecycle<C> {
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

impl<C: Clone> Lifecycle<C> {
    pub(super) fn current(&self) -> Option<&C> {
        self.current.as_ref()
    }

    /// Handles a caller that needs a connection and saw none. Checks again, since a connection that another caller has made in
    /// the meantime must not be replaced.
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

    /// Stores a connection that was made. There was none when its attempt began, and there is only one attempt at a time.
    pub(super) fn made(&mut self, connection: C, now: Moment) {
        self.current = Some(connection);
        self.since = Some(now);
    }

    /// Notes the end of the attempt. `failure` is the reason why it made no connection.
    pub(super) fn ended(&mut self, failure: Option<Failure>, now: Moment) {
        self.attempt = None;
        self.last_failure = failure.map(|failure| (now, failure));
    }

    /// Removes and returns the current connection, if it is the given one. `broken` is the failure to report when connections
    /// break at once.
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

    /// Notes a reply that shows that the server is unusable at the moment.
    pub(super) fn failed(&mut self, failure: Failure, now: Moment) {
        self.last_failure = Some((now, failure));
    }

    /// Returns `true` if there ever was a connection.
    pub(super) fn has_connected(&self) -> bool {
        self.since.is_some()
    }

    /// Returns `true` if there is no connection, none is being made, and none was tried within `pause`.
    pub(super) fn is_to_be_made(&self, pause: Duration, now: Moment) -> bool {
        let failed = self.last_failure.as_ref().map(|(at, _)| *at);
        let mut tried = failed.into_iter().chain(self.since);
        let is_early = tried.any(|at| now.since(at) < pause);
        self.current.is_none() && self.attempt.is_none() && !is_early
    }
}

/// The reachability of one server. Its events come from the only connection to that server on the manager's thread.
#[derive(Debug, Default)]
pub(super) struct Reachability {
    /// The time when the last connection ended, and whether that was logged.
    lost: Option<(Moment, bool)>,
    /// `true` if a task is making the next connection.
    is_returning: bool,
}

impl Reachability {
    /// Notes that a connection in use has ended. Returns whether a new task has to make the next one; only one does at a time.
    pub(super) fn broke(&mut self, now: Moment) -> bool {
        self.lost.get_or_insert((now, false));
        !mem::replace(&mut self.is_returning, true)
    }

    /// Notes that this task has ended.
    pub(super) fn returns_no_more(&mut self) {
        self.is_returning = false;
    }

    /// Notes that no new connection could be made. Returns whether to log it, which happens once for each outage.
    pub(super) fn failed(&mut self) -> bool {
        let is_said = self.lost.as_mut().map(|(_, is_said)| is_said);
        is_said.is_some_and(|is_said| !mem::replace(is_said, true))
    }

    /// Notes that a connection was made. Returns how long the server was unreachable, if that was logged.
    pub(super) fn returned(&mut self, now: Moment) -> Option<Duration> {
        let (since, is_said) = self.lost.take()?;
        is_said.then(|| now.since(since))
    }

    /// Returns `true` if the log said that the server is unreachable, and not yet that it is reached again.
    pub(super) fn is_out_of_reach(&self) -> bool {
        self.lost.is_some_and(|(_, is_said)| is_said)
    }
}

/// Returns the log line about the time in which a server was unreachable, according to its reply to `INFO server`. `uptime` is
/// the field of that reply, if it is not refused.
pub(super) fn since_then(uptime: Option<&str>, away: Duration) -> &'static str {
    match uptime.and_then(|seconds| seconds.parse().ok()) {
        None => {
            "the server is reached again; it is not known whether it was restarted and has forgotten locks, because `INFO` is refused"
        }
        // The server rounds down. A server that has been up for longer than the outage was running before it.
        Some(seconds) if Duration::from_secs(seconds) > away => {
            "the server is reached again: it was not restarted"
        }
        Some(_) => {
            "the server is reached again: it was restarted or replaced, and has lost all data that was not saved, locks \
             included"
        }
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
        Failure::not_now("connections break")
    }

    fn begun(lifecycle: &mut Lifecycle<Fake>, now: Moment) -> Arc<Attempt<Fake>> {
        match lifecycle.wanted(now) {
            Wanted::Begin(attempt) => attempt,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn all_callers_wait_for_one_attempt() {
        let mut lifecycle = Lifecycle::default();
        let first = begun(&mut lifecycle, at(0));
        let Wanted::Wait(second) = lifecycle.wanted(at(1)) else {
            panic!("a second attempt");
        };
        assert!(Arc::ptr_eq(&first, &second));
        assert!(first.set(Ok(Fake(1))).is_ok(), "the first result");
        assert!(second.set(Err(broken())).is_err(), "the first result stays");
    }

    #[test]
    fn there_is_a_pause_after_a_failed_attempt() {
        let mut lifecycle = Lifecycle::<Fake>::default();
        begun(&mut lifecycle, at(0));
        lifecycle.ended(Some(broken()), at(10));
        let refused = lifecycle.wanted(at(59));
        assert!(matches!(refused, Wanted::Known(Err(_))), "{refused:?}");
        assert!(!lifecycle.is_to_be_made(Duration::from_secs(1), at(1009)));
        assert!(lifecycle.is_to_be_made(Duration::from_secs(1), at(1010)));
        begun(&mut lifecycle, at(60));
        assert!(!lifecycle.is_to_be_made(Duration::from_secs(1), at(5000)));
    }

    #[test]
    fn connections_that_end_as_soon_as_they_are_made_count_as_a_failure() {
        let mut lifecycle = Lifecycle::default();
        for number in 1..=MOST_SHORT_LIVED + 1 {
            begun(&mut lifecycle, at(0));
            lifecycle.made(Fake(number), at(0));
            lifecycle.ended(None, at(0));
            let taken = lifecycle.take_if(|current| current.0 == number, at(1), broken);
            assert_eq!(taken.map(|taken| taken.0), Some(number));
        }
        let refused = lifecycle.wanted(at(2));
        assert!(matches!(refused, Wanted::Known(Err(_))), "{refused:?}");
        begun(&mut lifecycle, at(51));
        lifecycle.made(Fake(9), at(51));
        lifecycle.ended(None, at(51));
        lifecycle.take_if(|_| true, at(51 + 50), broken);
        begun(&mut lifecycle, at(51 + 50));
    }

    #[test]
    fn a_live_connection_is_not_replaced_by_a_later_one() {
        let mut lifecycle = Lifecycle::default();
        begun(&mut lifecycle, at(0));
        lifecycle.made(Fake(1), at(0));
        let known = lifecycle.wanted(at(0));
        assert!(matches!(known, Wanted::Known(Ok(Fake(1)))), "{known:?}");
        lifecycle.ended(None, at(0));
        let known = lifecycle.wanted(at(1));
        assert!(matches!(known, Wanted::Known(Ok(Fake(1)))), "{known:?}");
        let other = lifecycle.take_if(|current| current.0 == 2, at(60), broken);
        assert!(other.is_none(), "another connection is current");
        assert!(
            lifecycle
                .take_if(|current| current.0 == 1, at(60), broken)
                .is_some()
        );
        begun(&mut lifecycle, at(60));
    }

    #[test]
    fn one_task_at_a_time_makes_the_next_connection() {
        let mut reachability = Reachability::default();
        assert!(reachability.broke(at(0)));
        assert!(!reachability.broke(at(1)));
        reachability.returns_no_more();
        assert!(reachability.broke(at(40)));
    }

    #[test]
    fn an_outage_is_logged_once_at_its_beginning_and_once_at_its_end() {
        let mut reachability = Reachability::default();
        assert!(!reachability.failed(), "the server was never reached");
        reachability.broke(at(1_000));
        assert!(reachability.failed() && !reachability.failed());
        reachability.broke(at(5_000));
        assert_eq!(
            reachability.returned(at(21_000)),
            Some(Duration::from_secs(20))
        );
        assert_eq!(reachability.returned(at(22_000)), None);
    }

    #[test]
    fn a_connection_that_is_replaced_at_once_is_not_an_outage() {
        let mut reachability = Reachability::default();
        reachability.broke(at(1_000));
        assert_eq!(reachability.returned(at(1_000)), None);
        assert!(!reachability.failed());
    }

    #[test]
    fn a_server_with_an_uptime_shorter_than_the_outage_was_restarted() {
        let away = Duration::from_secs(20);
        for (uptime, says) in [
            (Some("20"), "it was restarted or replaced"),
            (Some("21"), "it was not restarted"),
            (None, "is not known"),
        ] {
            let said = since_then(uptime, away);
            assert!(said.contains(says), "{uptime:?}: {said}");
        }
    }
}
