//! Reports to subscribers: spans and events by `tracing`, and metrics if the `metrics` feature is on.
//!
//! Waits are observed only in the [`WaitFuture`](crate::driver::waiting::WaitFuture), and holds only in the
//! [`LeaseState`](crate::driver::lease_state::LeaseState). Without a subscriber, each costs one check and a few bytes.
//!
//! Nothing is reported while a mutex of this crate is held, so a subscriber may lock its own mutexes and acquire locks of
//! this crate. A subscriber that panics in the middle of a hand-over must not interrupt it, because the lock would then
//! have no holder, or two.
//!
//! Metrics are labelled with the template of a key, never with the key, since each order, for example, would then have a
//! series of its own. All keys that are made from a string share one label.
//!
//! Spans and events have the level `DEBUG`, except those that need an operator's attention.

use std::{mem, time::Duration};

use tracing::{Level, Span};

use crate::{
    error::{LeaseLost, LockError},
    fencing::FencingToken,
    key::{LockKey, Shown},
    mode::LockMode,
    moment::Moment,
    runtime::{catch_panic::catch_panic, clock::Clock},
};

#[cfg_attr(not(feature = "metrics"), path = "no_figures.rs")]
pub(crate) mod figures;
mod literal_keys;
pub(crate) mod refusals;

/// A waiting task, as observed for a subscriber. Boxed, since thousands of tasks may wait.
pub(crate) struct WatchedWait {
    observed: ObservedSpan,
    has_ended: bool,
}

/// A task that holds a lock, as observed for a subscriber.
pub(crate) struct WatchedHold(ObservedSpan);

struct ObservedSpan {
    key: LockKey,
    mode: LockMode,
    span: Span,
    since: Moment,
    clock: Clock,
}

impl ObservedSpan {
    fn begin(key: &LockKey, mode: LockMode, span: Span, clock: &Clock) -> Self {
        Self {
            key: key.clone(),
            mode,
            span,
            since: clock.now(),
            clock: clock.clone(),
        }
    }

    /// Reports the end inside the span. Returns how long the span lasted.
    fn ends(&self, report: impl FnOnce(Shown<'_>, Duration)) -> Duration {
        let so_far = self.clock.now().since(self.since);
        self.span.in_scope(|| report(self.key.shown(), so_far));
        so_far
    }
}

impl Drop for ObservedSpan {
    /// Closes the span, which may call subscribers.
    fn drop(&mut self) {
        let span = mem::replace(&mut self.span, Span::none());
        catch_panic(|| drop(span));
    }
}

impl WatchedWait {
    /// Begins to observe a wait. Returns `None` if there is no subscriber.
    pub(crate) fn begin(key: &LockKey, mode: LockMode, clock: &Clock) -> Option<Box<Self>> {
        if !figures::ARE_KEPT && !details_are_logged() {
            return None;
        }
        figures::enter("lock_waiting", key, mode);
        let span = tracing::debug_span!("lock_wait", key = %key.shown(), template = key.template(), mode = mode.label());
        Some(Box::new(Self {
            observed: ObservedSpan::begin(key, mode, span, clock),
            has_ended: false,
        }))
    }

    /// Returns the span for futures that are polled during the wait.
    pub(crate) fn span(&self) -> Span {
        self.observed.span.clone()
    }

    /// Reports that the lock was granted.
    pub(crate) fn granted(mut self, fencing_token: FencingToken) -> WatchedHold {
        let fencing_token = u64::from(fencing_token);
        self.ends(|key, waited| tracing::debug!(%key, ?waited, fencing_token, "acquired"));
        let ObservedSpan {
            key, mode, clock, ..
        } = &self.observed;
        figures::add("lock_acquired_total", key, *mode);
        figures::enter("lock_held", key, *mode);
        let span = tracing::debug_span!("lock_hold", key = %key.shown(), template = key.template(), mode = mode.label(), fencing_token);
        WatchedHold(ObservedSpan::begin(key, *mode, span, clock))
    }

    /// Reports that the wait ended with the result of a run.
    pub(crate) fn done(mut self) {
        self.ends(|key, waited| tracing::debug!(%key, ?waited, "answered with a stored result"));
    }

    /// Reports that the wait ended without the lock.
    pub(crate) fn failed(mut self, error: &LockError) {
        self.ends(|key, waited| tracing::debug!(%key, ?waited, %error, "not acquired"));
        count_refused(&self.observed.key, self.observed.mode, error);
    }

    fn ends(&mut self, report: impl FnOnce(Shown<'_>, Duration)) {
        // Set first, because a subscriber may panic.
        self.has_ended = true;
        let waited = self.observed.ends(report);
        let ObservedSpan { key, mode, .. } = &self.observed;
        figures::leave("lock_waiting", key, *mode);
        figures::took("lock_wait_seconds", key, *mode, waited);
    }
}

impl Drop for WatchedWait {
    /// Reports that the future was dropped, for example by a time-out of its caller, or because a client disconnected.
    fn drop(&mut self) {
        if !self.has_ended {
            catch_panic(|| {
                self.ends(|key, waited| tracing::debug!(%key, ?waited, "stopped waiting"));
                figures::add(
                    "lock_abandoned_total",
                    &self.observed.key,
                    self.observed.mode,
                );
            });
        }
    }
}

impl WatchedHold {
    /// Returns the span for code that runs under the lock.
    pub(crate) fn span(&self) -> Span {
        self.0.span.clone()
    }
}

impl Drop for WatchedHold {
    fn drop(&mut self) {
        let ObservedSpan { key, mode, .. } = &self.0;
        catch_panic(|| {
            let held = self
                .0
                .ends(|key, held| tracing::debug!(%key, ?held, "released"));
            figures::leave("lock_held", key, *mode);
            figures::took("lock_hold_seconds", key, *mode, held);
        });
    }
}

/// Reports that a task was refused before it could wait, which counts as a wait of zero length.
pub(crate) fn refused(key: &LockKey, mode: LockMode, error: &LockError) {
    tracing::debug!(key = %key.shown(), %error, "not acquired");
    figures::took("lock_wait_seconds", key, mode, Duration::ZERO);
    count_refused(key, mode, error);
}

fn count_refused(key: &LockKey, mode: LockMode, error: &LockError) {
    match error {
        LockError::Busy { .. } => figures::add("lock_busy_total", key, mode),
        LockError::Unavailable { .. } => figures::add("lock_unavailable_total", key, mode),
        // The first two are mistakes in the program. A loss has been counted when it happened, and a repeat is counted by
        // `once/`.
        LockError::Invalid { .. }
        | LockError::NotConfigured
        | LockError::Lost { .. }
        | LockError::Repeated { .. } => {}
    }
}

/// Reports that the connection to a server has ended, and no other could be made.
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
        figures::connected(server, 1);
    });
}

/// Reports that there is a connection to a server.
pub(crate) fn reached(server: &str) {
    catch_panic(|| figures::connected(server, 0));
}

/// Reports that a server that was out of reach is connected again, or that no connection to it is needed any more, because
/// it left the cluster or the manager has ended.
pub(crate) fn out_of_reach_no_more(server: &str) {
    catch_panic(|| figures::connected(server, -1));
}

/// Reports that a lease ended before it was released. `failure` is the last failure of a backend that does not reply.
pub(crate) fn lost(key: &LockKey, mode: LockMode, reason: LeaseLost, failure: Option<&str>) {
    catch_panic(|| tracing::warn!(key = %key.shown(), %reason, failure, "lease lost"));
    lost_at_release(key, mode, reason);
}

/// Counts a lease whose loss was only noticed by its release. There is no log line, because the caller gets the reason.
pub(crate) fn lost_at_release(key: &LockKey, mode: LockMode, reason: LeaseLost) {
    let reason = match reason {
        LeaseLost::Expired => "expired",
        LeaseLost::TakenAway => "taken_away",
        LeaseLost::MaxHold => "max_hold",
        LeaseLost::Shutdown => "shutdown",
        LeaseLost::OtherKey => "other_key",
        LeaseLost::Released => return,
    };
    let labels = [("mode", mode.label()), ("reason", reason)];
    count("lock_lost_total", key, &labels);
}

/// Warns about a key that was written by hand and looks like a template, once for each text. Does nothing in a release
/// build.
pub(crate) fn check_literal(key: &LockKey) {
    if cfg!(debug_assertions) && literal_keys::is_news(key) {
        catch_panic(|| {
            tracing::warn!(
                key = %key.shown(),
                "the key has braces, but a text that is passed by hand is not a template, so every call takes this one key: \
                 write `key!(\"…\")` around it, or double the braces there if they are meant literally"
            );
        });
    }
}

/// Reports that the global manager was replaced by another one while it could still grant locks.
pub(crate) fn global_manager_replaced() {
    catch_panic(|| {
        tracing::warn!(
            "`set_global` replaced a manager that still grants locks: holders of the old manager may not exclude callers of the new \
             one. Call it once, at the start of the process; to give one task another manager, use `with_locks`"
        );
    });
}

/// Returns `true` if a subscriber wants the events of single locks.
pub(crate) fn details_are_logged() -> bool {
    tracing::enabled!(Level::DEBUG)
}

/// Reports that a guard was dropped right after it was created.
pub(crate) fn released_at_once(key: &LockKey) {
    catch_panic(|| {
        tracing::debug!(
            key = %key.shown(),
            "released at once: to hold the lock, bind its guard, as in `let guard = …`, not `let _ = …`"
        );
    });
}

/// Reports that the lock was handed over from one holder to the next. The `kind` is `local` within one process, where no
/// message is needed, and `remote` otherwise.
pub(crate) fn handed_over(key: &LockKey, mode: LockMode, kind: &'static str) {
    let labels = [("mode", mode.label()), ("kind", kind)];
    count("lock_handoffs_total", key, &labels);
}

/// Increments a counter of this key, with these labels in addition to the key's.
pub(crate) fn count(name: &'static str, key: &LockKey, labels: &[(&'static str, &'static str)]) {
    catch_panic(|| figures::count(name, key, labels));
}
