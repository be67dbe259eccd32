//! What this process holds of a lock on the server: one owner token, which is handed from task to task.
//!
//! Each task that gets it has a lease of its own, with its own fencing token. The server lease is what is renewed and released.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{
    error::LeaseLost,
    fencing::FencingBlock,
    key::LockKey,
    lock::{context::Context, held::lease_state::LeaseState},
    options::{AutoRenew, Terms},
    runtime::{clock::Moment, timer_queue::TimerId},
    store::{Renew, grants::EntryNumber, in_flight::InFlight, owner_token::OwnerToken},
};

/// What was won: the facts of a grant, before it belongs to anyone.
#[derive(Clone, Debug)]
pub(crate) struct Granted {
    pub(crate) full_key: Arc<str>,
    pub(crate) token: OwnerToken,
    pub(crate) entry: EntryNumber,
    pub(crate) in_flight: Arc<InFlight>,
    pub(crate) tokens: FencingBlock,
    pub(crate) ttl: Duration,
    /// Until when it is certain that the server has it.
    pub(crate) valid_until: Moment,
}

impl Granted {
    /// Whether less than half of its ttl is left.
    pub(crate) fn is_short(&self, context: &Context) -> bool {
        self.valid_until.since(context.clock.now()) < self.ttl / 2
    }
}

pub(crate) struct ServerLease {
    pub(crate) key: LockKey,
    pub(crate) full_key: Arc<str>,
    pub(crate) token: OwnerToken,
    pub(crate) entry: EntryNumber,
    pub(crate) in_flight: Arc<InFlight>,
    pub(crate) ttl: Duration,
    /// Cleared once, if at all.
    renewed: AtomicBool,
    pub(crate) context: Arc<Context>,
    /// Grows only, in nanoseconds of the clock.
    valid_until: AtomicU64,
    /// Set once; final.
    lost: OnceLock<LeaseLost>,
    /// The lease of the task that has it now; `None` when it was let go.
    holder: Mutex<Option<Arc<LeaseState>>>,
    /// When to renew, in nanoseconds of the clock, and the place in the schedule. Written only by the renewal.
    pub(crate) renew_at: AtomicU64,
    timer_id: Mutex<Option<TimerId>>,
}

impl ServerLease {
    pub(crate) fn new(context: Arc<Context>, key: LockKey, grant: &Granted, terms: &Terms) -> Self {
        Self {
            key,
            full_key: grant.full_key.clone(),
            token: grant.token.clone(),
            entry: grant.entry,
            in_flight: grant.in_flight.clone(),
            ttl: terms.ttl,
            renewed: AtomicBool::new(terms.renew == AutoRenew::On),
            context,
            valid_until: AtomicU64::new(grant.valid_until.as_nanos()),
            lost: OnceLock::new(),
            holder: Mutex::new(None),
            renew_at: AtomicU64::new(0),
            timer_id: Mutex::new(None),
        }
    }

    /// Hands it to its first lease.
    pub(crate) fn begin_with(&self, lease: &Arc<LeaseState>) {
        *self.lock_holder() = Some(lease.clone());
    }

    /// Hands it to the next lease, unless it is lost.
    pub(crate) fn pass_to(&self, lease: &Arc<LeaseState>) -> Result<(), LeaseLost> {
        let mut holder = self.lock_holder();
        if let Some(reason) = self.lost.get() {
            return Err(*reason);
        }
        *holder = Some(lease.clone());
        Ok(())
    }

    /// Nobody has it any more; it is about to be released.
    pub(crate) fn vacate(&self) {
        *self.lock_holder() = None;
    }

    /// Loses it, for whoever has it.
    pub(crate) fn lose(&self, reason: LeaseLost) {
        let holder = {
            let holder = self.lock_holder();
            // The first reason stands.
            self.lost.get_or_init(|| reason);
            holder.clone()
        };
        if let Some(lease) = holder {
            lease.end(reason);
        }
    }

    /// Moves its end further away. What is lost stays lost, since that is looked at first everywhere.
    pub(crate) fn renewed_until(&self, valid_until: Moment) {
        self.valid_until
            .fetch_max(valid_until.as_nanos(), Ordering::AcqRel);
    }

    pub(crate) fn lost(&self) -> Option<LeaseLost> {
        self.lost.get().copied()
    }

    pub(crate) fn holder(&self) -> Option<Arc<LeaseState>> {
        self.lock_holder().clone()
    }

    pub(crate) fn valid_until(&self) -> Moment {
        Moment::from_nanos(self.valid_until.load(Ordering::Acquire))
    }

    /// When only half of its ttl is left.
    pub(crate) fn half_time(&self) -> Moment {
        self.valid_until().before(self.ttl / 2)
    }

    /// Whether at least half of its ttl is left, which a task may expect that gets it.
    pub(crate) fn is_fresh(&self, now: Moment) -> bool {
        self.valid_until().since(now) >= self.ttl / 2
    }

    pub(crate) fn renew(&self) -> AutoRenew {
        if self.renewed.load(Ordering::Relaxed) {
            AutoRenew::On
        } else {
            AutoRenew::Off
        }
    }

    /// From now on it is not renewed any more; a renewal that is on its way is the last.
    pub(crate) fn stop_renewing(&self) {
        self.renewed.store(false, Ordering::Relaxed);
    }

    pub(crate) fn renew_request(&self, ttl: Duration) -> Renew {
        Renew {
            full_key: self.full_key.clone(),
            token: self.token.clone(),
            ttl,
            acquire_in_flight: self.in_flight.clone(),
        }
    }

    pub(crate) fn swap_timer_id(&self, timer_id: Option<TimerId>) -> Option<TimerId> {
        std::mem::replace(&mut *self.lock_timer_id(), timer_id)
    }

    /// Whether the renewal is going to look at it again.
    pub(crate) fn is_planned(&self) -> bool {
        self.lock_timer_id().is_some()
    }

    fn lock_timer_id(&self) -> MutexGuard<'_, Option<TimerId>> {
        self.timer_id.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_holder(&self) -> MutexGuard<'_, Option<Arc<LeaseState>>> {
        self.holder.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
