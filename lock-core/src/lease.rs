//! What a holder can observe of the time for which it holds a lock.

use std::{
    fmt,
    future::Future,
    pin::pin,
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use tokio::sync::Notify;

use crate::{
    backend::Renewed,
    clock::Moment,
    engine::Engine,
    error::LockError,
    key::LockKey,
    options::{Renew, Terms},
    tenure::Tenure,
    token::FencingToken,
};

/// The time-limited right to hold a lock, as an observer sees it.
///
/// A cheap clone that may be passed around and kept; it does not keep the lock. It is renewed in the background until its
/// [`LockGuard`](crate::LockGuard) goes, and lost when renewing fails for too long or somebody takes the key away.
#[derive(Clone)]
pub struct Lease {
    state: Arc<LeaseState>,
}

/// How a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaseLost {
    /// It could not be renewed in time: the network or the server failed, this process was stopped, or renewal is off.
    Expired,
    /// The server said that the key is gone or another's: deleted, evicted, forced, or lost with the server's data.
    TakenAway,
    /// It was held for as long as `max_hold` allows.
    MaxHold,
    /// [`LockManager::shutdown`](crate::LockManager::shutdown) ended it at its deadline.
    Shutdown,
    /// It was released by its own guard. Only a clone that outlives the guard can see this.
    Released,
}

impl fmt::Display for LeaseLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "its time ran out before it was renewed",
            Self::TakenAway => "the key is gone or has another holder",
            Self::MaxHold => "it was held for as long as max_hold allows",
            Self::Shutdown => "the manager was shut down",
            Self::Released => "it was released",
        })
    }
}

impl Lease {
    pub(crate) fn new(state: Arc<LeaseState>) -> Self {
        Self { state }
    }

    /// Returns what is locked.
    #[must_use]
    pub fn key(&self) -> &LockKey {
        self.state.key()
    }

    /// Returns the number to hand to the store that the lock protects, so that it can refuse a holder that slept.
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        self.state.fencing
    }

    /// Returns each key of the lease with its fencing token.
    #[must_use]
    pub fn fencing_tokens(&self) -> Vec<(LockKey, FencingToken)> {
        vec![(self.state.key().clone(), self.state.fencing)]
    }

    /// Returns for how long the lease is certain to last, renewals to come not counted; zero once it has ended.
    ///
    /// Never says more than the truth: it counts from before the request was sent, minus an allowance of 1 % of the ttl
    /// and 2 ms for clocks that run at different rates.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.state.remaining()
    }

    /// Returns whether the lease has ended. Once true, it stays true.
    ///
    /// A local check without a message. It cannot know what the server has not told yet; [`verify`](Self::verify) asks.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.state.ended().is_some()
    }

    /// Waits until the lease ends, and returns how.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn lost(&self) -> LeaseLost {
        self.state.lost().await
    }

    /// Makes sure that the lease lasts for `at_least` longer: for the line before a side effect.
    ///
    /// # Errors
    ///
    /// - [`LockError::Lost`] if the lease has ended;
    /// - [`LockError::Unavailable`] if it is not certain to last that long, because renewals are failing;
    /// - [`LockError::Invalid`] if it cannot be expected to: more than half of the ttl, between two renewals.
    pub fn ensure(&self, at_least: Duration) -> Result<(), LockError> {
        let state = &self.state;
        if state.terms.renew == Renew::On && at_least > state.terms.ttl / 2 {
            return Err(LockError::invalid(format!(
                "a lease with a ttl of {:?} is not always certain to last {at_least:?} longer: choose a ttl of at least \
                 twice that time",
                state.terms.ttl
            ))
            .about(state.key()));
        }
        if let Some(reason) = state.ended() {
            return Err(state.lost_error(reason));
        }
        let remaining = state.remaining();
        if remaining < at_least {
            return Err(LockError::unavailable(format!(
                "the lease is certain for {remaining:?} more, less than the {at_least:?} asked for"
            ))
            .about(state.key()));
        }
        Ok(())
    }

    /// Asks the server whether the lease still holds. One round trip.
    ///
    /// For a process that may have been paused by its hypervisor, which no local clock can show. It does not renew the
    /// lease.
    ///
    /// # Errors
    ///
    /// - [`LockError::Lost`] if it has ended, or the server says that the key is gone or another's;
    /// - [`LockError::Unavailable`] if the server did not answer: nobody knows.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn verify(&self) -> Result<(), LockError> {
        let state = &self.state;
        if let Some(reason) = state.ended() {
            return Err(state.lost_error(reason));
        }
        let engine = state.engine();
        // A renewal by the shortest time only compares the token: no renewal ever shortens what is left.
        let request = state.tenure.renew_request(Duration::from_millis(1));
        let asked = engine
            .backend
            .renew(vec![request], engine.timing.command_timeout);
        let answers = engine
            .ask(asked)
            .await
            .map_err(|error| error.about(state.key()))?;
        match answers.into_iter().next() {
            Some(Ok(Renewed::Yes)) => match state.ended() {
                // The lease may have run out while the answer was on its way.
                None => Ok(()),
                Some(reason) => Err(state.lost_error(reason)),
            },
            Some(Ok(Renewed::NotOurs)) => {
                state.tenure.lose(LeaseLost::TakenAway);
                Err(state.lost_error(state.end(LeaseLost::TakenAway)))
            }
            Some(Err(failure)) => Err(LockError::from(failure).about(state.key())),
            None => Err(LockError::unavailable("the backend answered nothing").about(state.key())),
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("key", self.state.key())
            .field("fencing_token", &self.state.fencing)
            .field("remaining", &self.state.remaining())
            .finish_non_exhaustive()
    }
}

/// Whoever has to know that a lease was lost while its guard is still there.
pub(crate) trait OnLoss: Send + Sync {
    fn lost(self: Arc<Self>, lease: &LeaseState);

    /// The task that was granted the lease has not taken it for half of its ttl.
    fn unclaimed(self: Arc<Self>, lease: &LeaseState);
}

/// A lease, as the runtime sees it.
pub(crate) struct LeaseState {
    pub(crate) tenure: Arc<Tenure>,
    pub(crate) fencing: FencingToken,
    pub(crate) terms: Terms,
    /// When its task took it, if `max_hold` or `min_hold` count from there. Not yet: then nobody has run under it.
    claimed_at: OnceLock<Moment>,
    /// Set once, by whoever notices first; final.
    end: OnceLock<LeaseLost>,
    /// Signalled when `end` is set.
    ends: Notify,
    arbiter: Weak<dyn OnLoss>,
}

impl LeaseState {
    pub(crate) fn new(
        tenure: Arc<Tenure>,
        fencing: FencingToken,
        terms: Terms,
        arbiter: Weak<dyn OnLoss>,
    ) -> Self {
        Self {
            tenure,
            fencing,
            terms,
            claimed_at: OnceLock::new(),
            end: OnceLock::new(),
            ends: Notify::new(),
            arbiter,
        }
    }

    pub(crate) fn key(&self) -> &LockKey {
        &self.tenure.key
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.tenure.engine
    }

    /// Its task has it: from now on it is renewed.
    pub(crate) fn claim(&self) {
        // A hot lock is handed on too often to read the clock for nothing.
        let counts = self.terms.min_hold.is_some() || self.terms.max_hold.is_some();
        let now = if counts {
            self.engine().clock.now()
        } else {
            Moment::NEVER
        };
        let first = self.claimed_at.set(now).is_ok();
        if first && self.terms.max_hold.is_some() {
            self.engine().renewal.watch_holder(self);
        }
    }

    pub(crate) fn is_claimed(&self) -> bool {
        self.claimed_at.get().is_some()
    }

    /// Has everybody who waits for its end look again.
    pub(crate) fn rouse(&self) {
        self.ends.notify_waiters();
    }

    /// For a task that does not take it: lets it go on to the next.
    pub(crate) fn pass_on(&self) {
        if let Some(arbiter) = self.arbiter.upgrade() {
            arbiter.unclaimed(self);
        }
    }

    /// When the lease ends unless it is renewed.
    pub(crate) fn deadline(&self) -> Moment {
        let valid_until = self.tenure.valid_until();
        self.held_until()
            .map_or(valid_until, |bound| bound.min(valid_until))
    }

    /// How the lease ended, if it has. Looks at the clock: nobody has to have noticed before.
    pub(crate) fn ended(&self) -> Option<LeaseLost> {
        if let Some(reason) = self.end.get() {
            return Some(*reason);
        }
        if let Some(reason) = self.tenure.lost() {
            return Some(self.end(reason));
        }
        let now = self.engine().clock.now();
        if self.held_until().is_some_and(|bound| now >= bound) {
            return Some(self.end(LeaseLost::MaxHold));
        }
        if now >= self.tenure.valid_until() {
            return Some(self.end(LeaseLost::Expired));
        }
        None
    }

    /// Ends the lease, once; returns how it ended, which an earlier end decides.
    pub(crate) fn end(&self, reason: LeaseLost) -> LeaseLost {
        if let Err(_later) = self.end.set(reason) {
            return self.end.get().copied().unwrap_or(reason);
        }
        self.ends.notify_waiters();
        if reason != LeaseLost::Released {
            tracing::warn!(key = %self.key(), %reason, "lease lost");
            if let Some(arbiter) = self.arbiter.upgrade() {
                arbiter.lost(self);
            }
        }
        reason
    }

    pub(crate) async fn lost(&self) -> LeaseLost {
        let mut ends = pin!(self.ends.notified());
        loop {
            // Listening before looking: an end between the two would be missed the other way round.
            ends.as_mut().enable();
            if let Some(reason) = self.ended() {
                return reason;
            }
            // On the caller's runtimes, the renewal may have ended with the one it ran on.
            self.engine().renewal.keep_running();
            ends.as_mut().await;
            ends.set(self.ends.notified());
        }
    }

    /// Until when `min_hold` keeps the key.
    pub(crate) fn kept_until(&self) -> Option<Moment> {
        Some(self.claimed_at.get()?.after(self.terms.min_hold?))
    }

    pub(crate) fn remaining(&self) -> Duration {
        match self.ended() {
            Some(_) => Duration::ZERO,
            None => self.deadline().since(self.engine().clock.now()),
        }
    }

    pub(crate) fn lost_error(&self, reason: LeaseLost) -> LockError {
        LockError::Lost {
            key: self.key().clone(),
            reason,
        }
    }

    fn held_until(&self) -> Option<Moment> {
        Some(self.claimed_at.get()?.after(self.terms.max_hold?))
    }
}

/// Runs a body as long as its lease holds: the reason of the loss if it ends first.
///
/// The clock is looked at before each poll of the body, so that a process which slept through the end of its lease does
/// not take one more step: a plain `select!` polls the body first as often as not. What remains is a stop in the middle
/// of a step, which only a fencing token can make harmless.
pub(crate) async fn while_held<T>(
    lease: &LeaseState,
    body: impl Future<Output = T>,
) -> Result<T, LeaseLost> {
    let mut body = pin!(body);
    let mut lost = pin!(lease.lost());
    std::future::poll_fn(|context| {
        // `lost` looks at the clock whenever it is polled for the first time or after a signal, not at each poll.
        if let Some(reason) = lease.ended() {
            return std::task::Poll::Ready(Err(reason));
        }
        if let std::task::Poll::Ready(reason) = lost.as_mut().poll(context) {
            return std::task::Poll::Ready(Err(reason));
        }
        body.as_mut().poll(context).map(Ok)
    })
    .await
}
