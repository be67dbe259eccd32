//! Reports to subscribers: spans and events by `tracing`, and figures by `metrics`, if that feature is on.
//!
//! A wait and a hold are watched from one place each, the [`WaitFuture`](crate::lock::waiting::WaitFuture) and the
//! [`LeaseState`](crate::lock::lease_state::LeaseState). Without a subscriber, each of them costs one check for a subscriber, and
//! eight bytes.
//!
//! Nothing is reported while a mutex of this crate is held, so a subscriber may lock its own mutexes and acquire locks of this
//! crate. A subscriber that panics in the middle of a hand-over must not interrupt it: the lock would then have no holder, or two.
//!
//! Spans and events have the level `DEBUG`, except those that an operator has to look at.

use std::time::Duration;

use tracing::{Level, Span};

use crate::{
    error::{LeaseLost, LockError},
    fencing::FencingToken,
    key::{LockKey, Shown},
    mode::LockMode,
    runtime::{
        catch_panic::catch_panic,
        clock::{Clock, Moment},
    },
};

#[cfg_attr(not(feature = "metrics"), path = "no_figures.rs")]
mod figures;
mod hand_off;
mod literal_keys;
#[cfg(feature = "once")]
mod once_outcome;
mod refusals;

pub(crate) use hand_off::HandOff;
#[cfg(feature = "once")]
pub(crate) use once_outcome::OnceOutcome;
pub(crate) use refusals::Refusals;

/// A task that waits.
#[derive(Default)]
pub(crate) struct WatchedWait(Observed);

/// A task that holds a lock.
#[derive(Default)]
pub(crate) struct WatchedHold(Observed);

/// In a box, since thousands of tasks may wait. `None` without a subscriber, or after the wait or the hold has ended.
type Observed = Option<Box<ObservedSpan>>;

struct ObservedSpan {
    key: LockKey,
    mode: LockMode,
    span: Span,
    since: Moment,
    clock: Clock,
}

impl ObservedSpan {
    /// Reports the end, in the span. Returns how long it took.
    fn ends(&self, report: impl FnOnce(Shown<'_>, Duration)) -> Duration {
        let so_far = self.clock.now().since(self.since);
        self.span.in_scope(|| report(self.key.shown(), so_far));
        so_far
    }
}

fn span(watched: &Observed) -> Span {
    let span = watched.as_ref().map(|watch| watch.span.clone());
    span.unwrap_or_else(Span::none)
}

/// Whether a subscriber listens to waits and holds.
fn listened_to() -> bool {
    figures::ARE_KEPT || details_are_logged()
}

impl WatchedWait {
    pub(crate) fn begin(key: &LockKey, mode: LockMode, clock: &Clock) -> Self {
        if !listened_to() {
            return Self(None);
        }
        figures::wait_begins(key, mode);
        Self(Some(Box::new(ObservedSpan {
            key: key.clone(),
            mode,
            span: tracing::debug_span!("lock_wait", key = %key.shown(), template = key.template(), mode = mode.label()),
            since: clock.now(),
            clock: clock.clone(),
        })))
    }

    /// The span for futures that are polled during the wait.
    pub(crate) fn span(&self) -> Span {
        span(&self.0)
    }

    /// The lock was granted.
    pub(crate) fn granted(&mut self, fencing_token: FencingToken) -> WatchedHold {
        let Some(watch) = self.0.take() else {
            return WatchedHold(None);
        };
        let fencing_token = u64::from(fencing_token);
        let waited =
            watch.ends(|key, waited| tracing::debug!(%key, ?waited, fencing_token, "acquired"));
        let ObservedSpan {
            key, mode, clock, ..
        } = *watch;
        figures::wait_ends(&key, mode, waited);
        figures::hold_begins(&key, mode);
        WatchedHold(Some(Box::new(ObservedSpan {
            span: tracing::debug_span!("lock_hold", key = %key.shown(), template = key.template(), mode = mode.label(), fencing_token),
            since: clock.now(),
            key,
            mode,
            clock,
        })))
    }

    /// The wait ended with the result of a run.
    pub(crate) fn done(&mut self) {
        if let Some(watch) = self.0.take() {
            let waited = watch.ends(|key, waited| tracing::debug!(%key, ?waited, "done before"));
            figures::wait_ends(&watch.key, watch.mode, waited);
        }
    }

    /// The wait ended without the lock.
    pub(crate) fn failed(&mut self, error: &LockError) {
        if let Some(watch) = self.0.take() {
            let waited =
                watch.ends(|key, waited| tracing::debug!(%key, ?waited, %error, "not acquired"));
            figures::wait_ends(&watch.key, watch.mode, waited);
            figures::refused(&watch.key, watch.mode, error);
        }
    }
}

impl Drop for WatchedWait {
    /// Records that the future was dropped: by a time-out of its caller, or because a client disconnected.
    fn drop(&mut self) {
        if let Some(watch) = self.0.take() {
            catch_panic(|| {
                let waited =
                    watch.ends(|key, waited| tracing::debug!(%key, ?waited, "stopped waiting"));
                figures::wait_ends(&watch.key, watch.mode, waited);
                figures::abandoned(&watch.key, watch.mode);
                drop(watch);
            });
        }
    }
}

impl WatchedHold {
    /// Whether there is a subscriber to it.
    pub(crate) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// The span for code that runs under the lock.
    pub(crate) fn span(&self) -> Span {
        span(&self.0)
    }
}

impl Drop for WatchedHold {
    fn drop(&mut self) {
        if let Some(watch) = self.0.take() {
            catch_panic(|| {
                let held = watch.ends(|key, held| tracing::debug!(%key, ?held, "released"));
                figures::hold_ends(&watch.key, watch.mode, held);
                // The span closes here, and that may call subscribers.
                drop(watch);
            });
        }
    }
}

/// A task was refused before it could wait.
pub(crate) fn refused(key: &LockKey, mode: LockMode, error: &LockError) {
    tracing::debug!(key = %key.shown(), %error, "not acquired");
    figures::refused_at_once(key, mode);
    figures::refused(key, mode, error);
}

/// The connection to a server has ended, and no other could be made.
#[cfg(feature = "redis")]
pub(crate) fn out_of_reach(
    server: &str,
    cause: &str,
    held: usize,
    first_ends_in: Option<Duration>,
) {
    catch_panic(|| {
        tracing::warn!(
            server,
            cause,
            leases_held = held,
            first_ends_in = first_ends_in.map(tracing::field::debug),
            "the server is out of reach: no lock on it can be acquired, and leases are not renewed"
        );
        figures::connected(server, false);
    });
}

/// There is a connection to a server, or none is needed any more: its node left the cluster, or the manager has ended.
#[cfg(feature = "redis")]
pub(crate) fn reached(server: &str) {
    catch_panic(|| figures::connected(server, true));
}

/// A lease ended before it was released. `failure`: the last one of the backend, if it does not reply.
pub(crate) fn lost(key: &LockKey, mode: LockMode, reason: LeaseLost, failure: Option<&str>) {
    catch_panic(|| {
        tracing::warn!(key = %key.shown(), %reason, failure, "lease lost");
        figures::lost(key, mode, reason);
    });
}

/// Warns of a key by hand that looks like a template, once for each text. Does nothing in a release build.
///
/// Not to be called in a forked child, in which a mutex may stay locked.
pub(crate) fn check_literal(key: &LockKey) {
    if cfg!(debug_assertions) && literal_keys::is_news(key) {
        catch_panic(|| {
            tracing::warn!(
                key = %key.shown(),
                "the key has braces, and a text that is passed by hand is no template: every call takes this one key. Write \
                 `key!(\"…\")` around it. If the braces are meant, double them there"
            );
        });
    }
}

/// Whether a subscriber wants the events of single locks.
pub(crate) fn details_are_logged() -> bool {
    tracing::enabled!(Level::DEBUG)
}

/// A guard was dropped as soon as it was made.
pub(crate) fn released_at_once(key: &LockKey) {
    catch_panic(|| {
        tracing::debug!(
            key = %key.shown(),
            "released at once: if the lock was to be held, bind its guard, as in `let guard = …`, not `let _ = …`"
        );
    });
}

pub(crate) fn handed_on(key: &LockKey, mode: LockMode, how: HandOff) {
    catch_panic(|| figures::handed_on(key, mode, how));
}

/// A call for a body that runs once has ended.
#[cfg(feature = "once")]
pub(crate) fn once(key: &LockKey, outcome: OnceOutcome) {
    catch_panic(|| figures::once(key, outcome));
}

/// Describes the figures to the recorder, if one is installed already.
pub(crate) fn describe() {
    figures::describe();
}
