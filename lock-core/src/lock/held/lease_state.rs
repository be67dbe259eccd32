//! A lease as the runtime sees it: whose it is, until when, and how it ended.

use std::{
    pin::pin,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::sync::Notify;

use crate::{
    error::{LeaseLost, LockError},
    fencing::FencingToken,
    key::LockKey,
    lock::{context::Context, held::server_lease::ServerLease},
    options::{AutoRenew, Terms},
    runtime::{catch_panic::catch_panic, clock::Moment},
    store::{Failure, Renewed},
    telemetry,
};

/// Whoever has to know that a lease was lost while its guard is still there.
pub(crate) trait OnLoss: Send + Sync {
    fn lost(self: Arc<Self>, lease: &LeaseState);

    /// The task that was granted the lease has not taken it for half of its ttl.
    fn unclaimed(self: Arc<Self>, lease: &LeaseState);
}

/// A lease, as the runtime sees it.
pub(crate) struct LeaseState {
    pub(crate) server_lease: Arc<ServerLease>,
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
    registry: Weak<dyn OnLoss>,
}

impl LeaseState {
    pub(crate) fn new(
        server_lease: Arc<ServerLease>,
        fencing: FencingToken,
        terms: Terms,
        registry: Weak<dyn OnLoss>,
    ) -> Self {
        Self {
            server_lease,
            fencing,
            terms,
            claimed: AtomicBool::new(false),
            began_at: OnceLock::new(),
            siblings: Mutex::new(None),
            end: OnceLock::new(),
            ends: Notify::new(),
            registry,
        }
    }

    pub(crate) fn key(&self) -> &LockKey {
        &self.server_lease.key
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.server_lease.context
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
        let first = self.began_at.set(self.context().clock.now()).is_ok();
        if first && self.terms.max_hold.is_some() {
            self.context().renewal.watch_holder(self);
        }
    }

    /// From now on the loss of one of these leases is the loss of all. What was lost before is for the caller to see, by
    /// looking after this.
    pub(crate) fn tie(&self, all: &Arc<[Arc<Self>]>) {
        *self.siblings.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::downgrade(all));
    }

    /// Has everybody who waits for its end look again.
    pub(crate) fn rouse(&self) {
        catch_panic(|| self.ends.notify_waiters());
    }

    /// For a task that does not take it: lets it go on to the next.
    pub(crate) fn pass_on(&self) {
        if let Some(registry) = self.registry.upgrade() {
            registry.unclaimed(self);
        }
    }

    /// When the lease ends unless it is renewed.
    pub(crate) fn deadline(&self) -> Moment {
        let valid_until = self.server_lease.valid_until();
        self.held_until()
            .map_or(valid_until, |bound| bound.min(valid_until))
    }

    /// How the lease ended, if it has. Looks at the clock: nobody has to have noticed before.
    pub(crate) fn ended(&self) -> Option<LeaseLost> {
        let now = self.context().clock.now();
        // In a forked child nothing is done about it: it is the parent's, and there it goes on.
        if !self.context().is_here_at(now) {
            return Some(LeaseLost::Forked);
        }
        if let Some(reason) = self.end.get() {
            return Some(*reason);
        }
        if let Some(reason) = self.server_lease.lost() {
            return Some(self.end(reason));
        }
        if self.held_until().is_some_and(|bound| now >= bound) {
            return Some(self.end(LeaseLost::MaxHold));
        }
        if now >= self.server_lease.valid_until() {
            return Some(self.end(LeaseLost::Expired));
        }
        None
    }

    /// Ends the lease, once; returns how it ended, which an earlier end decides.
    pub(crate) fn end(&self, reason: LeaseLost) -> LeaseLost {
        if let Err(_later) = self.end.set(reason) {
            return self.end.get().copied().unwrap_or(reason);
        }
        catch_panic(|| self.ends.notify_waiters());
        if reason != LeaseLost::Released {
            telemetry::lost(self.key(), reason);
            if let Some(registry) = self.registry.upgrade() {
                registry.lost(self);
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
            self.context().renewal.keep_running();
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
            None => self.deadline().since(self.context().clock.now()),
        }
    }

    #[cfg(feature = "simulation")]
    pub(crate) fn certain_for(&self) -> Duration {
        if self.end.get().is_some() || self.server_lease.lost().is_some() {
            return Duration::ZERO;
        }
        self.deadline().since(self.context().clock.now())
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
    pub(crate) fn check_length(&self, at_least: Duration) -> Result<(), LockError> {
        if self.server_lease.renew() == AutoRenew::On && at_least > self.terms.ttl / 2 {
            return Err(LockError::invalid(format!(
                "a lease with a ttl of {:?} is not always certain to last {at_least:?} longer: choose a ttl of at least \
                 twice that time",
                self.terms.ttl
            ))
            .about(self.key()));
        }
        Ok(())
    }

    pub(crate) fn check_remaining(&self, at_least: Duration) -> Result<(), LockError> {
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
    pub(crate) fn note_renewal(
        &self,
        result: Option<Result<Renewed, Failure>>,
    ) -> Result<(), LockError> {
        match result {
            Some(Ok(Renewed::Extended)) => Ok(()),
            Some(Ok(Renewed::NotOurs)) => {
                self.server_lease.lose(LeaseLost::TakenAway);
                Err(self.lost_error(self.end(LeaseLost::TakenAway)))
            }
            Some(Err(failure)) => Err(LockError::from(failure).about(self.key())),
            None => Err(LockError::unavailable("the backend answered nothing").about(self.key())),
        }
    }
}
