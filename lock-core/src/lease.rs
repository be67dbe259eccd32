//! What a holder can observe of the time for which it holds a lock.

use std::{
    fmt,
    pin::pin,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::sync::Notify;

use crate::{
    backend::{Failure, Renewed},
    clock::Moment,
    engine::Engine,
    error::LockError,
    foreign::safely,
    key::LockKey,
    lease_set::Leases,
    options::{Renew, Terms},
    telemetry,
    tenure::Tenure,
    token::FencingToken,
};

/// The time-limited right to hold a lock, as an observer sees it.
///
/// A cheap clone that may be passed around and kept; it does not keep the lock. It is renewed in the background until its
/// [`LockGuard`](crate::LockGuard) goes, and lost when renewing fails for too long or somebody takes the key away.
///
/// Of several keys that were taken [at once](crate::LockManager::acquire_all) there is one lease. It is lost as soon as one
/// of them is.
#[derive(Clone)]
pub struct Lease {
    leases: Leases,
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
    /// Another key that was taken at once with this one was lost, and this one with it.
    OtherKey,
    /// This process was forked from the one that holds it, and has a copy. The parent holds it on.
    Forked,
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
            Self::OtherKey => "another key that was taken with it was lost",
            Self::Forked => "it belongs to the process that this one was forked from",
            Self::Released => "it was released",
        })
    }
}

impl Lease {
    pub(crate) fn new(leases: Leases) -> Self {
        Self { leases }
    }

    /// Returns what is locked; of several keys the first, in the order in which they were written.
    #[must_use]
    pub fn key(&self) -> &LockKey {
        self.leases.first().key()
    }

    /// Returns the number to hand to the store that the lock protects, so that it can refuse a holder that slept.
    ///
    /// It is that of [`key`](Self::key). What another key of the lease protects needs that key's own, from
    /// [`fencing_tokens`](Self::fencing_tokens): tokens grow from one holder of a key to the next, and tell nothing about
    /// the holders of another key.
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        self.leases.first().fencing
    }

    /// Returns each key of the lease once, in the order in which they were written, with its fencing token.
    #[must_use]
    pub fn fencing_tokens(&self) -> Vec<(LockKey, FencingToken)> {
        let leases = self.leases.all().iter();
        leases
            .map(|lease| (lease.key().clone(), lease.fencing))
            .collect()
    }

    /// Returns for how long the lease is certain to last, renewals to come not counted; zero once it has ended.
    ///
    /// Never says more than the truth: it counts from before the request was sent, minus an allowance of 1 % of the ttl
    /// and 2 ms for clocks that run at different rates. Of several keys it is the least.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.leases.remaining()
    }

    /// Returns whether the lease has ended. Once true, it stays true.
    ///
    /// A local check without a message. It cannot know what the server has not told yet; [`verify`](Self::verify) asks.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.leases.ended().is_some()
    }

    /// Waits until the lease ends, and returns how.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn lost(&self) -> LeaseLost {
        // Before it waits: what it would wait for is the parent's, in a forked child.
        match self.leases.ended() {
            Some((_, reason)) => reason,
            None => self.leases.lost().await,
        }
    }

    /// Makes sure that the lease lasts for `at_least` longer: for the line before a side effect.
    ///
    /// # Errors
    ///
    /// - [`LockError::Lost`] if the lease has ended;
    /// - [`LockError::Unavailable`] if it is not certain to last that long, because renewals are failing;
    /// - [`LockError::Invalid`] if it cannot be expected to: more than half of the ttl, between two renewals.
    pub fn ensure(&self, at_least: Duration) -> Result<(), LockError> {
        let each = || self.leases.all().iter();
        each().try_for_each(|lease| lease.check_length(at_least))?;
        self.leases.check()?;
        each().try_for_each(|lease| lease.check_remaining(at_least))
    }

    /// Asks the server whether the lease still holds, each key of it. One round trip.
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
        let engine = self.leases.first().engine();
        engine
            .check_process()
            .map_err(|error| error.about(self.key()))?;
        self.leases.check()?;
        // A renewal never shortens, so one by what is left only compares the token; and it gives a key whose expiry somebody
        // took away the one that it should have.
        let now = engine.clock.now();
        let compare = |lease: &Arc<LeaseState>| {
            let left = lease.tenure.valid_until().since(now);
            lease
                .tenure
                .renew_request(left.max(Duration::from_millis(1)))
        };
        let batch = self.leases.all().iter().map(compare).collect();
        let answers = engine
            .ask(|backend| backend.renew(batch, engine.timing.command_timeout))
            .await
            .map_err(|error| error.about(self.key()))?;
        let mut answers = answers.into_iter();
        let mut known = Ok(());
        for lease in self.leases.all() {
            let word = lease.hear(answers.next());
            known = known.and(word);
        }
        // A key that is lost comes before one of which nothing is known. And the lease may have run out while the answer
        // was on its way.
        self.leases.check()?;
        known
    }

    pub(crate) fn leases(&self) -> &Leases {
        &self.leases
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Lease");
        match self.leases.all() {
            [one] => shown
                .field("key", one.key())
                .field("fencing_token", &one.fencing),
            _ => shown.field("fencing_tokens", &self.fencing_tokens()),
        };
        shown
            .field("remaining", &self.remaining())
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
    /// Whether its task has taken it, and keeps it by renewals.
    claimed: AtomicBool,
    /// When its task began to run under it, if `max_hold` or `min_hold` count from there.
    began_at: OnceLock<Moment>,
    /// All leases, this one among them, that are lost as soon as one of them is.
    siblings: Mutex<Option<Weak<[Arc<LeaseState>]>>>,
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
            claimed: AtomicBool::new(false),
            began_at: OnceLock::new(),
            siblings: Mutex::new(None),
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
        self.claimed.store(true, Ordering::Release);
    }

    pub(crate) fn is_claimed(&self) -> bool {
        self.claimed.load(Ordering::Acquire)
    }

    /// Its task has all that it needs, and runs under it from now on.
    pub(crate) fn begin(&self) {
        // A hot lock is handed on too often to read the clock for nothing.
        if self.terms.min_hold.is_none() && self.terms.max_hold.is_none() {
            return;
        }
        let first = self.began_at.set(self.engine().clock.now()).is_ok();
        if first && self.terms.max_hold.is_some() {
            self.engine().renewal.watch_holder(self);
        }
    }

    /// From now on the loss of one of these leases is the loss of all. What was lost before is for the caller to see, by
    /// looking after this.
    pub(crate) fn tie(&self, all: &Arc<[Arc<Self>]>) {
        *self.siblings.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::downgrade(all));
    }

    /// Has everybody who waits for its end look again.
    pub(crate) fn rouse(&self) {
        safely(|| self.ends.notify_waiters());
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
        let now = self.engine().clock.now();
        // In a forked child nothing is done about it: it is the parent's, and there it goes on.
        if !self.engine().is_here_at(now) {
            return Some(LeaseLost::Forked);
        }
        if let Some(reason) = self.end.get() {
            return Some(*reason);
        }
        if let Some(reason) = self.tenure.lost() {
            return Some(self.end(reason));
        }
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
        safely(|| self.ends.notify_waiters());
        if reason != LeaseLost::Released {
            telemetry::lost(self.key(), reason);
            if let Some(arbiter) = self.arbiter.upgrade() {
                arbiter.lost(self);
            }
            self.end_siblings(reason);
        }
        reason
    }

    /// Whoever ties leases together looks at their ends afterwards; whoever ends one looks for ties afterwards. So one of
    /// the two sees the other.
    fn end_siblings(&self, reason: LeaseLost) {
        if reason == LeaseLost::OtherKey {
            return;
        }
        let tied = self
            .siblings
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if let Some(siblings) = tied.and_then(|tied| tied.upgrade()) {
            for sibling in &*siblings {
                sibling.end(LeaseLost::OtherKey);
            }
        }
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
        let min_hold = self.terms.min_hold?;
        Some(self.began_at.get()?.after(min_hold))
    }

    pub(crate) fn remaining(&self) -> Duration {
        match self.ended() {
            Some(_) => Duration::ZERO,
            None => self.deadline().since(self.engine().clock.now()),
        }
    }

    #[cfg(feature = "simulation")]
    pub(crate) fn certain_for(&self) -> Duration {
        if self.end.get().is_some() || self.tenure.lost().is_some() {
            return Duration::ZERO;
        }
        self.deadline().since(self.engine().clock.now())
    }

    pub(crate) fn lost_error(&self, reason: LeaseLost) -> LockError {
        LockError::Lost {
            key: self.key().clone(),
            reason,
        }
    }

    fn held_until(&self) -> Option<Moment> {
        let max_hold = self.terms.max_hold?;
        Some(self.began_at.get()?.after(max_hold))
    }

    /// Whether it can be expected to last so long at all times.
    fn check_length(&self, at_least: Duration) -> Result<(), LockError> {
        if self.tenure.renew() == Renew::On && at_least > self.terms.ttl / 2 {
            return Err(LockError::invalid(format!(
                "a lease with a ttl of {:?} is not always certain to last {at_least:?} longer: choose a ttl of at least \
                 twice that time",
                self.terms.ttl
            ))
            .about(self.key()));
        }
        Ok(())
    }

    fn check_remaining(&self, at_least: Duration) -> Result<(), LockError> {
        let remaining = self.remaining();
        if remaining < at_least {
            return Err(LockError::unavailable(format!(
                "the lease is certain for {remaining:?} more, less than the {at_least:?} asked for"
            ))
            .about(self.key()));
        }
        Ok(())
    }

    /// Takes the server's word on whether the key is still ours.
    fn hear(&self, word: Option<Result<Renewed, Failure>>) -> Result<(), LockError> {
        match word {
            Some(Ok(Renewed::Yes)) => Ok(()),
            Some(Ok(Renewed::NotOurs)) => {
                self.tenure.lose(LeaseLost::TakenAway);
                Err(self.lost_error(self.end(LeaseLost::TakenAway)))
            }
            Some(Err(failure)) => Err(LockError::from(failure).about(self.key())),
            None => Err(LockError::unavailable("the backend answered nothing").about(self.key())),
        }
    }
}
