//! The state of a lease, which its holder and its observers share.
//!
//! The state machine makes the decisions and publishes them here. An observer also reads the clock, so it notices at once
//! that a lease has run out, whether or not a timer has fired. This is not an event of the key: the state machine ends the
//! lease with its own timer.

use std::{
    sync::{
        Arc, OnceLock, Weak,
        atomic::{
            AtomicBool, AtomicU8, AtomicU64, AtomicUsize,
            Ordering::{self, SeqCst},
        },
    },
    thread::{self, ThreadId},
    time::Duration,
};

use tokio::{sync::Notify, task};

use crate::{
    backend::{Renew, owner::Owner},
    driver::context::Context,
    engine::{
        terms::{HoldBounds, Terms},
        transition::{NewLease, ReleaseAction, TaskId},
    },
    error::{HeldBy, LeaseLost, LockError},
    fencing::{Fence, FencingToken},
    key::LockKey,
    mode::{Mode, RequestKind},
    moment::Moment,
    runtime::{catch_panic::catch_panic, mutex::Mutex},
    telemetry::{self, WatchedHold},
};

pub(crate) struct LeaseState {
    pub(crate) context: Arc<Context>,
    pub(crate) key: LockKey,
    pub(crate) id: TaskId,
    pub(crate) owner: Arc<Owner>,
    pub(crate) fencing: FencingToken,
    /// The permit of a lease with permits.
    pub(crate) permit: Option<u16>,
    pub(crate) ttl: Duration,
    pub(crate) mode: Mode,
    /// Initially `true` for most leases, cleared at most once, and never set again.
    is_renewed: AtomicBool,
    /// `true` while the guard has not been used. Read only by telemetry.
    is_unseen: AtomicBool,
    /// The end of the lease in nanoseconds of the clock. It only grows, and only the driver of the state machine changes
    /// it.
    valid_until: AtomicU64,
    /// The task that acquired the lease, and when.
    acquired: (RunningTask, Moment),
    /// Set only with `max_hold` or `min_hold`. Boxed, because most leases have neither, and a process may hold 100,000 of
    /// them.
    bounded: Option<Box<Bounded>>,
    /// All leases, including this one, that are lost as soon as one of them is.
    siblings: Mutex<Option<Weak<[Arc<LeaseState>]>>>,
    /// Zero until the lease ends, then the number of the reason. Set once, by the first caller that notices the end.
    end: AtomicU8,
    /// `true` if a task has waited for the end. The task sets this before it reads `end`, and whoever sets `end` does so
    /// before reading this, so at least one of the two notices the other. Most leases end unobserved, and then nothing is
    /// signalled.
    is_observed: AtomicBool,
    ends: Notify,
    /// The number of guards that share the lease. The last one releases it, and no guard can join after that.
    guards: AtomicUsize,
    /// Set only if there is a subscriber. Taken once, by the release.
    watch: OnceLock<Mutex<Option<Box<WatchedHold>>>>,
}

/// The bounds that `max_hold` and `min_hold` set on the lease.
struct Bounded {
    terms: Terms,
    /// Set when the task begins to run under the lease, which is when `max_hold` and `min_hold` begin to count.
    begun: OnceLock<HoldBounds>,
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

/// The reasons, in the order of their numbers.
const REASONS: [LeaseLost; 6] = [
    LeaseLost::Expired,
    LeaseLost::TakenAway,
    LeaseLost::MaxHold,
    LeaseLost::Shutdown,
    LeaseLost::OtherKey,
    LeaseLost::Released,
];

fn reason_of(number: u8) -> Option<LeaseLost> {
    REASONS.get(usize::from(number).checked_sub(1)?).copied()
}

impl LeaseState {
    /// Creates the lease of a task that accepts its grant. It belongs to one guard.
    pub(crate) fn new(
        context: &Arc<Context>,
        key: &LockKey,
        new: &NewLease<'_, Arc<Owner>>,
    ) -> Self {
        let terms = *new.terms;
        let is_bounded = terms.max_hold.is_some() || terms.min_hold.is_some();
        context.held.open_one();
        Self {
            context: context.clone(),
            key: key.clone(),
            id: new.id,
            owner: new.owner.clone(),
            fencing: new.fencing,
            permit: new
                .permit
                .filter(|_| terms.mode.kind() == RequestKind::Permits),
            ttl: terms.ttl,
            mode: terms.mode,
            is_renewed: AtomicBool::new(new.is_renewed),
            is_unseen: AtomicBool::new(false),
            valid_until: AtomicU64::new(new.valid_until.as_nanos()),
            acquired: (RunningTask::current(), new.acquired_at),
            bounded: is_bounded.then(|| {
                Box::new(Bounded {
                    terms,
                    begun: OnceLock::new(),
                })
            }),
            siblings: Mutex::new(None),
            end: AtomicU8::new(0),
            is_observed: AtomicBool::new(false),
            ends: Notify::new(),
            guards: AtomicUsize::new(1),
            watch: OnceLock::new(),
        }
    }

    pub(crate) fn kind(&self) -> RequestKind {
        self.mode.kind()
    }

    /// Returns the fence that the holder shows to a store.
    pub(crate) fn fence(&self) -> Fence {
        Fence {
            token: self.fencing,
            // All holders of a shared phase have the same token, in every process.
            holder: match self.mode {
                Mode::Shared => 0,
                Mode::Exclusive | Mode::Permits(_) | Mode::Once => {
                    self.context.owner_tokens.manager
                }
            },
            permit: self.permit,
        }
    }

    pub(crate) fn held_for(&self, now: Moment) -> Duration {
        now.since(self.acquired.1)
    }

    /// Returns the holder of the lease, as the calling task sees it.
    pub(crate) fn held_by(&self, now: Moment) -> HeldBy {
        let held = self.held_for(now);
        if self.is_of_this_task() {
            HeldBy::ThisTask(held)
        } else {
            HeldBy::ThisProcess(held)
        }
    }

    /// Records that the task now has all the leases that it needs, and begins to run under this one. Returns the bounds if
    /// the state machine has to know them.
    pub(crate) fn begin(&self) -> Option<HoldBounds> {
        self.is_unseen.store(true, Ordering::Relaxed);
        // Only the bounds need the time. A contended lock is handed over too often to read the clock for every lease.
        let bounded = self.bounded.as_ref()?;
        let bounds = bounded.terms.bounds_from(self.context.clock.now());
        bounded.begun.set(bounds).is_ok().then_some(bounds)
    }

    /// Records that the user has used the guard.
    pub(crate) fn note_seen(&self) {
        self.is_unseen.store(false, Ordering::Relaxed);
    }

    pub(crate) fn is_of_this_task(&self) -> bool {
        self.acquired.0 == RunningTask::current()
    }

    /// Returns `true` if the guard that is being dropped is the last one, was never used, and held the lease for less than
    /// this time.
    pub(crate) fn ends_unseen(&self, within: Duration) -> bool {
        self.is_unseen.load(Ordering::Relaxed)
            && self.guards.load(Ordering::Relaxed) == 1
            && self.held_for(self.context.clock.now()) < within
    }

    pub(crate) fn is_renewed(&self) -> bool {
        self.is_renewed.load(Ordering::Relaxed)
    }

    /// Records that the lease is no longer renewed. It then runs out, unless a renewal in flight extends it once more.
    pub(crate) fn note_unrenewed(&self) {
        self.is_renewed.store(false, Ordering::Relaxed);
    }

    /// Ties the lease to the others: if one is lost, all are lost. Afterwards the caller must check whether one was lost
    /// before.
    pub(crate) fn tie(&self, all: &Arc<[Arc<Self>]>) {
        *self.siblings.lock() = Some(Arc::downgrade(all));
    }

    /// Lets telemetry report the hold.
    pub(crate) fn watch(&self, watch: WatchedHold) {
        (self.watch).get_or_init(|| Mutex::new(Some(Box::new(watch))));
    }

    /// Returns the span for the code that runs under the lock.
    pub(crate) fn span(&self) -> tracing::Span {
        let watch = self.watch.get();
        let span = watch.and_then(|watch| watch.lock().as_ref().map(|watch| watch.span()));
        span.unwrap_or_else(tracing::Span::none)
    }

    /// Wakes all tasks that wait for the end of the lease, which then check again.
    pub(crate) fn rouse(&self) {
        if self.is_observed.load(SeqCst) {
            catch_panic(|| self.ends.notify_waiters());
        }
    }

    /// Returns the time at which the lease ends unless it is renewed.
    pub(crate) fn deadline(&self) -> Moment {
        let valid_until = self.valid_until();
        self.held_until()
            .map_or(valid_until, |bound| bound.min(valid_until))
    }

    pub(crate) fn valid_until(&self) -> Moment {
        Moment::from_nanos(self.valid_until.load(Ordering::Acquire))
    }

    /// Extends the lease. If an observer has seen it end in the meantime, that is final, and the reason is returned. A
    /// lease that its guard has released does not count as lost, even if the state machine does not know of the release
    /// yet.
    pub(crate) fn extend(&self, valid_until: Moment) -> Option<LeaseLost> {
        self.valid_until
            .fetch_max(valid_until.as_nanos(), Ordering::AcqRel);
        reason_of(self.end.load(SeqCst)).filter(|reason| *reason != LeaseLost::Released)
    }

    /// Returns how the lease ended, if it has. Reads the clock, since no timer may have noticed the end yet.
    pub(crate) fn ended(&self) -> Option<LeaseLost> {
        self.ended_at(self.context.clock.now())
    }

    pub(super) fn ended_at(&self, now: Moment) -> Option<LeaseLost> {
        if let Some(reason) = reason_of(self.end.load(SeqCst)) {
            return Some(reason);
        }
        if self.held_until().is_some_and(|bound| now >= bound) {
            return Some(self.end(LeaseLost::MaxHold));
        }
        if now >= self.valid_until() {
            return Some(self.end(LeaseLost::Expired));
        }
        None
    }

    /// Ends the lease, unless it has already ended. Returns the reason that counts, which is the first one.
    pub(crate) fn end(&self, reason: LeaseLost) -> LeaseLost {
        match (self.end).compare_exchange(0, reason as u8 + 1, SeqCst, SeqCst) {
            Ok(_) => {
                self.rouse();
                reason
            }
            Err(earlier) => reason_of(earlier).unwrap_or(reason),
        }
    }

    /// Records that the state machine has ended the lease. Returns the leases that are lost with it, or `None` if the guard
    /// has released them in the meantime.
    ///
    /// The caller of `tie` checks for ended leases after tying them, and this function reads the ties after setting the
    /// end, so at least one of the two notices the other.
    pub(crate) fn note_lost(&self, reason: LeaseLost) -> Option<Arc<[Arc<Self>]>> {
        let reason = self.end(reason);
        if reason == LeaseLost::Released {
            return None;
        }
        let failure = self.context.outage.failure();
        telemetry::lost(&self.key, self.kind().shown(), reason, failure.as_deref());
        if reason == LeaseLost::OtherKey {
            return None;
        }
        self.siblings.lock().as_ref()?.upgrade()
    }

    pub(crate) async fn lost(&self) -> LeaseLost {
        let mut ends = std::pin::pin!(self.ends.notified());
        self.is_observed.store(true, SeqCst);
        // Bounded by the number of signals.
        loop {
            // Registered before the check: in the other order, an end between the two would be missed.
            ends.as_mut().enable();
            if let Some(reason) = self.ended() {
                return reason;
            }
            self.context.ensure_ticking();
            ends.as_mut().await;
            ends.set(self.ends.notified());
        }
    }

    /// Lets one more guard share the lease. Returns `false` if the last guard has already released it.
    pub(crate) fn join(&self) -> bool {
        let count = |guards: usize| (guards > 0).then_some(guards + 1);
        self.guards
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, count)
            .is_ok()
    }

    /// Removes the share of one guard. Returns `true` if it was the last one.
    pub(super) fn leave(&self) -> bool {
        self.guards.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Ends the lease when the last guard releases it. Returns how the lease was lost, if it had already been lost.
    ///
    /// This must happen before the next task gets the lock, because no clone of this lease may look valid together with the
    /// next lease. The caller removes it from the tally of held leases only after the release has begun. Otherwise, a
    /// shutdown between the two could find nothing held and nothing in flight.
    pub(super) fn release(&self, now: Moment) -> Option<LeaseLost> {
        let lost = self.ended_at(now);
        self.end(LeaseLost::Released);
        if let Some(watch) = self.watch.get() {
            // Dropped after the mutex is unlocked, since the drop calls subscribers.
            let watch = watch.lock().take();
            drop(watch);
        }
        lost
    }

    /// Returns the action that releases the lease if the state machine no longer has it.
    pub(crate) fn release_action(&self) -> ReleaseAction<Arc<Owner>> {
        ReleaseAction {
            owner: self.owner.clone(),
            ttl: self.ttl,
            valid_until: self.valid_until(),
            kept_until: (self.bounded.as_ref()).and_then(|bounded| bounded.begun.get()?.kept_until),
            is_queued: !self.owner.in_flight.is_on_one_connection(),
        }
    }

    /// Returns a renewal, by which the server compares the owner token.
    pub(crate) fn renewal(&self, ttl: Duration) -> Renew {
        Renew::without_tokens(&self.owner, ttl)
    }

    pub(crate) fn remaining(&self) -> Duration {
        match self.ended() {
            Some(_) => Duration::ZERO,
            None => self.deadline().since(self.context.clock.now()),
        }
    }

    /// Like `remaining`, but does not record that the lease has ended. Used by the simulation.
    #[cfg(feature = "simulation")]
    pub(crate) fn certain_for(&self) -> Duration {
        match self.end.load(SeqCst) {
            0 => self.deadline().since(self.context.clock.now()),
            _ => Duration::ZERO,
        }
    }

    pub(crate) fn lost_error(&self, reason: LeaseLost) -> LockError {
        LockError::lost(&self.key, reason, self.context.outage.failure())
    }

    fn held_until(&self) -> Option<Moment> {
        self.bounded.as_ref()?.begun.get()?.held_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_a_number_of_its_own() {
        for reason in REASONS {
            assert_eq!(reason_of(reason as u8 + 1), Some(reason));
        }
        assert_eq!(reason_of(0), None);
        assert_eq!(
            REASONS.len(),
            LeaseLost::Released as usize + 1,
            "every reason is in the list"
        );
    }
}
