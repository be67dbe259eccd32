//! What the holder of a lease and its observers share.
//!
//! The state machine decides; this is what it publishes. An observer also reads the clock, so that a lease that has run out is lost
//! for it at once, whether or not a timer has fired.

use std::{
    pin::pin,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread::{self, ThreadId},
    time::Duration,
};

use tokio::{sync::Notify, task};

use crate::{
    error::{HeldBy, LeaseLost, LockError},
    fencing::{Fence, FencingToken},
    key::LockKey,
    lock::{
        context::Context,
        key_state::{
            ReleaseAction, TaskId,
            server_lease::{RenewalPlan, ServerLease},
        },
        registry::Registry,
        release::Releasing,
    },
    mode::{LockMode, Mode},
    options::Terms,
    runtime::{catch_panic::catch_panic, clock::Moment, mutex::Mutex, tally::Open},
    store::{Failure, Renewed, owner::Owner},
    telemetry::{self, WatchedHold},
};

pub(crate) struct LeaseState {
    pub(crate) registry: Arc<Registry>,
    pub(crate) key: LockKey,
    pub(crate) id: TaskId,
    pub(crate) owner: Arc<Owner>,
    pub(crate) fencing: FencingToken,
    /// The seat, of a lease with permits.
    pub(crate) permit: Option<u16>,
    pub(crate) terms: Terms,
    /// Cleared once, if at all.
    is_renewed: AtomicBool,
    /// Grows only, in nanoseconds of the clock. Written by the driver of the state machine.
    valid_until: AtomicU64,
    /// Which task took it, and when.
    taken: (RunningTask, Moment),
    /// When its task began to run under it, if `max_hold` or `min_hold` count from there.
    began_at: OnceLock<Moment>,
    /// All leases, this one among them, that are lost as soon as one of them is.
    siblings: Mutex<Option<Weak<[Arc<LeaseState>]>>>,
    /// Set once, by whichever notices first; final.
    end: OnceLock<LeaseLost>,
    /// Signalled when `end` is set.
    ends: Notify,
    /// How many guards share it. The last one releases; at zero no guard can join.
    guards: AtomicUsize,
    /// What is open as long as a guard has it. Taken once, by the release.
    held: Mutex<HeldByGuards>,
}

/// A task of tokio, or a thread that blocks on a future.
#[derive(PartialEq, Eq)]
enum RunningTask {
    Task(task::Id),
    Thread(ThreadId),
}

impl RunningTask {
    fn current() -> Self {
        match task::try_id() {
            Some(id) => Self::Task(id),
            None => Self::Thread(thread::current().id()),
        }
    }
}

/// What a shutdown waits for, and what telemetry watches.
#[derive(Default)]
struct HeldByGuards {
    open: Option<Open>,
    watch: WatchedHold,
}

impl LeaseState {
    /// Of a task that takes its grant: one guard has it.
    pub(crate) fn new<W, L>(
        registry: &Arc<Registry>,
        key: &LockKey,
        server_lease: &ServerLease<W, L, Arc<Owner>>,
        (id, terms, fencing): (TaskId, &Terms, FencingToken),
        now: Moment,
    ) -> Self {
        let open = registry.context.held.open();
        Self {
            registry: registry.clone(),
            key: key.clone(),
            id,
            owner: server_lease.owner.clone(),
            fencing,
            permit: server_lease
                .permit
                .filter(|_| terms.mode.kind() == LockMode::Permits),
            terms: *terms,
            is_renewed: AtomicBool::new(server_lease.renewal != RenewalPlan::Off),
            valid_until: AtomicU64::new(server_lease.valid_until.as_nanos()),
            taken: (RunningTask::current(), now),
            began_at: OnceLock::new(),
            siblings: Mutex::new(None),
            end: OnceLock::new(),
            ends: Notify::new(),
            guards: AtomicUsize::new(1),
            held: Mutex::new(HeldByGuards {
                open: Some(open),
                watch: WatchedHold::default(),
            }),
        }
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.registry.context
    }

    pub(crate) fn kind(&self) -> LockMode {
        self.terms.mode.kind()
    }

    /// What its holder shows to a store.
    pub(crate) fn fence(&self) -> Fence {
        Fence {
            token: self.fencing,
            // All that hold a shared phase have its token, whatever their process.
            holder: match self.terms.mode {
                Mode::Shared => 0,
                Mode::Exclusive | Mode::Permits(_) => self.context().owner_tokens.manager,
            },
            permit: self.permit,
        }
    }

    pub(crate) fn held_for(&self, now: Moment) -> Duration {
        now.since(self.taken.1)
    }

    /// What has it, for a task that asks now.
    pub(crate) fn held_by(&self, now: Moment) -> HeldBy {
        let held = self.held_for(now);
        if self.taken.0 == RunningTask::current() {
            HeldBy::ThisTask(held)
        } else {
            HeldBy::ThisProcess(held)
        }
    }

    /// Its task has all leases that it needs, and runs under it from now on.
    pub(crate) fn begin(&self) {
        // A hot lock is passed on too often to read the clock for nothing.
        if self.terms.min_hold.is_none() && self.terms.max_hold.is_none() {
            return;
        }
        let now = self.context().clock.now();
        if self.began_at.set(now).is_ok() {
            self.registry.begin(self, now);
        }
    }

    /// From now on it runs out, unless a renewal is in flight.
    pub(crate) fn stop_renewing(&self) {
        self.is_renewed.store(false, Ordering::Relaxed);
        self.registry.stop_renewing(self);
    }

    /// From now on the loss of one of these leases is the loss of all. The caller looks for an earlier loss after this.
    pub(crate) fn tie(&self, all: &Arc<[Arc<Self>]>) {
        *self.siblings.lock() = Some(Arc::downgrade(all));
    }

    /// Has telemetry tell of the hold.
    pub(crate) fn watch(&self, watch: WatchedHold) {
        self.held.lock().watch = watch;
    }

    /// For what runs under the lock.
    pub(crate) fn span(&self) -> tracing::Span {
        self.held.lock().watch.span()
    }

    /// Has all that wait for its end look again.
    pub(crate) fn rouse(&self) {
        catch_panic(|| self.ends.notify_waiters());
    }

    /// When the lease ends unless it is renewed.
    pub(crate) fn deadline(&self) -> Moment {
        let valid_until = self.valid_until();
        self.held_until()
            .map_or(valid_until, |bound| bound.min(valid_until))
    }

    pub(crate) fn valid_until(&self) -> Moment {
        Moment::from_nanos(self.valid_until.load(Ordering::Acquire))
    }

    /// Moves its end further away. What has ended stays so, since that is read first.
    pub(crate) fn extend(&self, valid_until: Moment) {
        self.valid_until
            .fetch_max(valid_until.as_nanos(), Ordering::AcqRel);
    }

    /// How the lease ended, if it has. Reads the clock: it need not have been noticed before.
    pub(crate) fn ended(&self) -> Option<LeaseLost> {
        let now = self.context().clock.now();
        // In a forked child nothing is done about it: the lease is the parent's, and goes on there.
        if !self.context().is_here_at(now) {
            return Some(LeaseLost::Forked);
        }
        if let Some(reason) = self.end.get() {
            return Some(*reason);
        }
        if self.held_until().is_some_and(|bound| now >= bound) {
            return Some(self.end(LeaseLost::MaxHold));
        }
        if now >= self.valid_until() {
            return Some(self.end(LeaseLost::Expired));
        }
        None
    }

    /// Ends the lease, once; returns how it ended, which an earlier end decides.
    pub(crate) fn end(&self, reason: LeaseLost) -> LeaseLost {
        if let Err(_later) = self.end.set(reason) {
            return self.end.get().copied().unwrap_or(reason);
        }
        self.rouse();
        if reason != LeaseLost::Released {
            telemetry::lost(&self.key, self.kind(), reason);
            // A guard of a lost lease keeps no other task from the lock.
            self.registry.lose(self, reason);
            self.end_siblings(reason);
        }
        reason
    }

    /// Tying looks at the ends afterwards, and an end looks for ties afterwards. So one of the two sees the other.
    fn end_siblings(&self, reason: LeaseLost) {
        if reason == LeaseLost::OtherKey {
            return;
        }
        let tied = self.siblings.lock().clone();
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
            // On the caller's runtimes, the task of the timers may have ended with the one it ran on.
            self.registry.keep_ticking();
            ends.as_mut().await;
            ends.set(self.ends.notified());
        }
    }

    /// One more guard shares it. Returns whether that is possible: the last one may have released.
    pub(crate) fn join(&self) -> bool {
        let count = |guards: usize| (guards > 0).then_some(guards + 1);
        self.guards
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, count)
            .is_ok()
    }

    /// One guard releases its share. The last one releases the lock, and the future waits for the reply; dropping it leaves the
    /// release in flight. `None`: there is nothing to wait for.
    pub(crate) fn leave(&self) -> Option<Releasing> {
        if self.guards.fetch_sub(1, Ordering::AcqRel) > 1 {
            return None;
        }
        // Before a mutex is taken, which another thread may have held at the moment of a fork. What waits for the end, or is told of
        // it, does so in the parent.
        if !self.context().is_here() {
            return Some(Releasing::forked(self.key.clone()));
        }
        // Closed after the release has begun: a shutdown must not find nothing held and nothing in flight between the two.
        let held = std::mem::take(&mut *self.held.lock());
        let lost = self.ended();
        // Before the next task has the lock: no clone of this lease may look valid beside it.
        self.end(LeaseLost::Released);
        drop(held.watch);
        let releasing = self.registry.release(self, lost);
        drop(held.open);
        releasing
    }

    /// The action that releases it, if the state machine has given it up.
    pub(crate) fn release_action(&self) -> ReleaseAction<Arc<Owner>> {
        ReleaseAction {
            owner: self.owner.clone(),
            ttl: self.terms.ttl,
            valid_until: self.valid_until(),
            kept_until: self.kept_until(),
            is_queued: !self.owner.in_flight.is_on_one_connection(),
        }
    }

    pub(crate) fn remaining(&self) -> Duration {
        match self.ended() {
            Some(_) => Duration::ZERO,
            None => self.deadline().since(self.context().clock.now()),
        }
    }

    /// The same for the simulation, which changes nothing by looking.
    #[cfg(feature = "simulation")]
    pub(crate) fn certain_for(&self) -> Duration {
        match self.end.get() {
            Some(_) => Duration::ZERO,
            None => self.deadline().since(self.context().clock.now()),
        }
    }

    pub(crate) fn lost_error(&self, reason: LeaseLost) -> LockError {
        LockError::Lost {
            key: self.key.clone(),
            reason,
        }
    }

    fn held_until(&self) -> Option<Moment> {
        let max_hold = self.terms.max_hold?;
        Some(self.began_at.get()?.after(max_hold))
    }

    fn kept_until(&self) -> Option<Moment> {
        let min_hold = self.terms.min_hold?;
        Some(self.began_at.get()?.after(min_hold))
    }

    /// Whether it can be expected to last so long at all times.
    pub(crate) fn check_length(&self, at_least: Duration) -> Result<(), LockError> {
        if self.is_renewed.load(Ordering::Relaxed) && at_least > self.terms.ttl / 2 {
            return Err(LockError::invalid(format!(
                "a lease with a ttl of {:?} is not always certain to last {at_least:?} longer: choose a ttl of at least \
                 twice that time",
                self.terms.ttl
            ))
            .about(&self.key));
        }
        Ok(())
    }

    pub(crate) fn check_remaining(&self, at_least: Duration) -> Result<(), LockError> {
        let remaining = self.remaining();
        if remaining < at_least {
            return Err(LockError::unavailable(format!(
                "the lease is certain for {remaining:?} more, less than the {at_least:?} asked for"
            ))
            .about(&self.key));
        }
        Ok(())
    }

    /// Takes the server's reply on whether the key is still held.
    pub(crate) fn note_renewal(
        &self,
        result: Option<Result<Renewed, Failure>>,
    ) -> Result<(), LockError> {
        match result {
            Some(Ok(Renewed::Extended | Renewed::ExtendedAndContended)) => Ok(()),
            Some(Ok(Renewed::NotOurs)) => Err(self.lost_error(self.end(LeaseLost::TakenAway))),
            Some(Err(failure)) => Err(LockError::from(failure).about(&self.key)),
            None => Err(LockError::unavailable("the backend answered nothing").about(&self.key)),
        }
    }
}
