//! The one place where tasks wait: per process and key, first come, first served, with one of them on the network.
//!
//! A task that wants a key takes a place in the key's line. The first one starts a *seeker*: work on the manager's thread
//! that asks the backend on behalf of whoever is at the head of the line. A user's future therefore owns nothing but a
//! place. Dropping it at any moment leaves nothing behind: the seeker goes on for those who stand behind it, or, if nobody
//! does, takes its request back. Whoever is granted the lease owns it from the moment the seeker hands it over.
//!
//! A key's slot is in one of three states:
//!
//! ```text
//!             first place taken                 granted
//!   (absent) ───────────────────▶ Seeking ──────────────────▶ Held
//!       ▲                            │ nobody waits any more    │ let go
//!       └────────────────────────────┴──────────────────────────┤
//!                                    ▲        others wait       │
//!                                    └──────────────────────────┘
//! ```

use std::{
    collections::HashMap,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll},
    time::Duration,
};

use tokio::sync::Notify;

use crate::{
    alarm::Sleep,
    clock::Moment,
    engine::{Engine, Open, Tally},
    error::LockError,
    holding::Holding,
    key::LockKey,
    lease::{Grant, LeaseState, OnLoss},
    line::{Departure, Line, Waiter},
    options::{Terms, Wait},
    seeker,
};

pub(crate) struct Arbiter {
    pub(crate) engine: Arc<Engine>,
    limits: Limits,
    waiting: Arc<Tally>,
    slots: Mutex<Slots>,
}

/// Bounds on what one manager holds in memory. See the setters of the builder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) held: usize,
    pub(crate) waiting: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            held: 100_000,
            waiting: 100_000,
        }
    }
}

#[derive(Default)]
struct Slots {
    keys: HashMap<LockKey, Slot>,
    /// After a shutdown nobody may stand in line any more.
    closed: bool,
}

struct Slot {
    line: Line,
    seat: Seat,
    last_word: Option<LastWord>,
}

enum Seat {
    /// The seeker ended without a word, with the runtime it ran on. Any waiter that is polled starts another.
    Vacant,
    /// A seeker asks the backend; the signal tells it that its line may be empty.
    Seeking(Arc<Notify>),
    /// A task of this process holds the lease.
    Held(Arc<LeaseState>),
}

/// What the backend said last, for those who stop waiting before it says more.
#[derive(Clone)]
pub(crate) enum LastWord {
    /// Busy until then, unless it is renewed or released; `None`: without an expiry.
    Busy(Option<Moment>),
    Failed(LockError),
}

impl LastWord {
    fn error(&self, key: &LockKey, now: Moment) -> LockError {
        match self {
            Self::Busy(until) => LockError::Busy {
                key: key.clone(),
                retry_after: until.map(|until| until.since(now)),
            },
            Self::Failed(error) => error.clone().about(key),
        }
    }
}

impl Arbiter {
    pub(crate) fn new(engine: Arc<Engine>, limits: Limits) -> Self {
        Self {
            engine,
            limits,
            waiting: Arc::default(),
            slots: Mutex::default(),
        }
    }

    /// Takes a place in the key's line.
    pub(crate) fn stand(
        self: &Arc<Self>,
        key: &LockKey,
        full_key: Arc<str>,
        terms: Terms,
    ) -> Result<Place, LockError> {
        self.check_limits(key)?;
        let waiter = Arc::new(Waiter::new(full_key, terms));
        let mut slots = self.lock();
        if slots.closed {
            return Err(closed().about(key));
        }
        if let Some(slot) = slots.keys.get_mut(key) {
            if terms.wait == Wait::No && slot.is_taken() {
                return Err(slot.verdict(key, terms.ttl, self.engine.clock.now()));
            }
            slot.line.push(waiter.clone());
            drop(slots);
            return Ok(Place::new(self.clone(), key.clone(), waiter));
        }
        let signal = Arc::new(Notify::new());
        let mut line = Line::default();
        line.push(waiter.clone());
        let slot = Slot {
            line,
            seat: Seat::Seeking(signal.clone()),
            last_word: None,
        };
        slots.keys.insert(key.clone(), slot);
        drop(slots);
        let place = Place::new(self.clone(), key.clone(), waiter);
        seeker::start(self, key, signal);
        Ok(place)
    }

    /// How many tasks wait for a key.
    pub(crate) fn waiters(&self, key: &LockKey) -> usize {
        self.lock()
            .keys
            .get(key)
            .map_or(0, |slot| slot.line.waiting().count())
    }

    /// Refuses new places from now on, and tells everybody in line.
    pub(crate) fn close(&self) {
        let mut slots = self.lock();
        slots.closed = true;
        let mut all = Vec::new();
        for (key, slot) in &mut slots.keys {
            all.extend(
                slot.line
                    .take_all()
                    .into_iter()
                    .map(|waiter| (key.clone(), waiter)),
            );
            slot.rouse_seeker();
        }
        drop(slots);
        for (key, waiter) in all {
            refuse(&waiter, closed().about(&key));
        }
    }

    /// The lease was let go or lost: its place is free for the next one in line.
    pub(crate) fn vacate(self: &Arc<Self>, lease: &LeaseState) {
        let mut slots = self.lock();
        let Some(slot) = slots.keys.get_mut(&lease.key) else {
            return;
        };
        if !matches!(&slot.seat, Seat::Held(held) if std::ptr::eq(&raw const **held, lease)) {
            return;
        }
        if slot.line.head().is_none() {
            slots.keys.remove(&lease.key);
            return;
        }
        let signal = slot.seek();
        drop(slots);
        seeker::start(self, &lease.key, signal);
    }

    /// For the seeker: whoever is at the head of the line. If nobody is, the slot is gone afterwards.
    pub(crate) fn head(&self, key: &LockKey) -> Option<Arc<Waiter>> {
        let mut slots = self.lock();
        let head = slots.keys.get_mut(key)?.line.head();
        if head.is_none() {
            slots.keys.remove(key);
        }
        head
    }

    /// For the seeker: waits until nobody stands in line.
    ///
    /// Dropping the future changes nothing.
    pub(crate) async fn deserted(&self, key: &LockKey, signal: &Notify) {
        loop {
            signal.notified().await;
            if self.waiters(key) == 0 {
                return;
            }
        }
    }

    /// For the seeker: passes on what the backend said, to those who wait for nothing more.
    pub(crate) fn tell(&self, key: &LockKey, word: LastWord) {
        let mut slots = self.lock();
        let Some(slot) = slots.keys.get_mut(key) else {
            return;
        };
        let impatient = slot.line.take_impatient();
        let error = word.error(key, self.engine.clock.now());
        slot.last_word = Some(word);
        drop(slots);
        for waiter in impatient {
            refuse(&waiter, error.clone());
        }
    }

    /// For the seeker: tells everybody in line what no waiting can cure.
    pub(crate) fn tell_all(&self, key: &LockKey, error: &LockError) {
        let mut slots = self.lock();
        let Some(slot) = slots.keys.get_mut(key) else {
            return;
        };
        let all = slot.line.take_all();
        drop(slots);
        for waiter in all {
            refuse(&waiter, error.clone().about(key));
        }
    }

    /// For the seeker: hands the grant to the first task in line that still wants it; gives it back if none does, and
    /// then the slot is gone.
    pub(crate) fn offer(self: &Arc<Self>, key: &LockKey, mut grant: Grant) -> Result<(), Grant> {
        // Bounded by the line: each round takes one waiter out of it.
        loop {
            let mut slots = self.lock();
            let next = slots
                .keys
                .get_mut(key)
                .and_then(|slot| Some((slot.line.pop()?, slot)));
            let Some((waiter, slot)) = next else {
                slots.keys.remove(key);
                return Err(grant);
            };
            let owner: Weak<dyn OnLoss> = Arc::<Self>::downgrade(self);
            let lease =
                LeaseState::new(self.engine.clone(), key.clone(), grant, waiter.terms, owner);
            let lease = Arc::new(lease);
            slot.seat = Seat::Held(lease.clone());
            slot.last_word = None;
            drop(slots);
            match waiter.settle(Ok(Holding::new(lease.clone(), self.clone()))) {
                Ok(()) => return Ok(()),
                // The task went away between the two locks.
                Err(returned) => {
                    grant = lease.grant();
                    if let Ok(holding) = returned {
                        holding.defuse();
                    }
                }
            }
        }
    }

    /// For the seeker that ends before its time: has the waiters start another.
    pub(crate) fn orphan(&self, key: &LockKey) {
        let mut slots = self.lock();
        let Some(slot) = slots.keys.get_mut(key) else {
            return;
        };
        slot.seat = Seat::Vacant;
        let waiters: Vec<_> = slot.line.waiting().cloned().collect();
        drop(slots);
        for waiter in waiters {
            waiter.wake();
        }
    }

    fn check_limits(&self, key: &LockKey) -> Result<(), LockError> {
        let Limits { held, waiting } = self.limits;
        let too_many = if self.waiting.count() >= waiting {
            format!(
                "{waiting} tasks wait for locks already, the most that this manager allows (max_waiting)"
            )
        } else if self.engine.open.count() >= held {
            format!(
                "{held} leases are held already, the most that this manager allows (max_leases)"
            )
        } else {
            return Ok(());
        };
        Err(LockError::unavailable(too_many).about(key))
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        // Nothing of the user's runs under this lock, and nothing of ours that panics.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OnLoss for Arbiter {
    /// Whoever still holds the guard of a lost lease does not keep others from the lock.
    fn lost(self: Arc<Self>, lease: &LeaseState) {
        self.vacate(lease);
    }
}

impl Slot {
    /// Whether somebody holds the lock or stands in line. A seeker alone, whose tasks went away, is nobody.
    fn is_taken(&mut self) -> bool {
        matches!(self.seat, Seat::Held(_)) || self.line.head().is_some()
    }

    /// What a task hears that will not wait.
    fn verdict(&self, key: &LockKey, ttl: Duration, now: Moment) -> LockError {
        match (&self.seat, &self.last_word) {
            (Seat::Held(lease), _) => LockError::Busy {
                key: key.clone(),
                retry_after: Some(lease.deadline().since(now)),
            },
            (_, Some(word)) => word.error(key, now),
            // The first answer is still on its way, but somebody stands before.
            (_, None) => LockError::Busy {
                key: key.clone(),
                retry_after: Some(ttl),
            },
        }
    }

    fn seek(&mut self) -> Arc<Notify> {
        let signal = Arc::new(Notify::new());
        self.seat = Seat::Seeking(signal.clone());
        self.last_word = None;
        signal
    }

    fn rouse_seeker(&self) {
        if let Seat::Seeking(signal) = &self.seat {
            signal.notify_one();
        }
    }
}

fn refuse(waiter: &Waiter, error: LockError) {
    // A waiter that went away needs no word.
    drop(waiter.settle(Err(error)));
}

fn closed() -> LockError {
    LockError::unavailable("this lock manager was shut down")
}

/// A task's place in line, and the future that waits there.
///
/// # Cancel safety
///
/// Dropping it leaves nothing behind. If the lease was granted meanwhile, it is released or goes to the next in line.
#[must_use = "a place that is not awaited is given up at once"]
pub(crate) struct Place {
    arbiter: Arc<Arbiter>,
    key: LockKey,
    waiter: Arc<Waiter>,
    deadline: Option<Sleep>,
    _waiting: Open,
}

impl Place {
    fn new(arbiter: Arc<Arbiter>, key: LockKey, waiter: Arc<Waiter>) -> Self {
        let engine = &arbiter.engine;
        let deadline = match waiter.terms.wait {
            Wait::For(wait) => Some(engine.alarm.sleep_until(engine.clock.now().after(wait))),
            Wait::No | Wait::Forever => None,
        };
        let waiting = arbiter.waiting.open();
        Self {
            arbiter,
            key,
            waiter,
            deadline,
            _waiting: waiting,
        }
    }

    /// The time to wait is over. Says so if something is known; if a first answer is still on its way, it decides, which
    /// takes no longer than one command.
    fn run_out_of_patience(&self) -> Option<LockError> {
        self.waiter.lose_patience();
        let slots = self.arbiter.lock();
        let slot = slots.keys.get(&self.key)?;
        let now = self.arbiter.engine.clock.now();
        match (&slot.seat, &slot.last_word) {
            (Seat::Held(_), _) | (_, Some(_)) => {
                Some(slot.verdict(&self.key, self.waiter.terms.ttl, now))
            }
            (_, None) => None,
        }
    }

    /// Leaves the line, once; returns an answer that came and was not taken.
    fn leave(&self) -> Option<Result<Holding, LockError>> {
        match self.waiter.go() {
            Departure::Before => None,
            Departure::Untaken(result) => Some(*result),
            Departure::InLine => {
                let mut slots = self.arbiter.lock();
                if let Some(slot) = slots.keys.get_mut(&self.key) {
                    slot.line.note_gone();
                    slot.rouse_seeker();
                }
                None
            }
        }
    }

    /// Starts a seeker where the last one was lost with its runtime.
    fn replace_lost_seeker(&self) {
        let mut slots = self.arbiter.lock();
        let Some(slot) = slots.keys.get_mut(&self.key) else {
            return;
        };
        if !matches!(slot.seat, Seat::Vacant) {
            return;
        }
        let signal = slot.seek();
        drop(slots);
        seeker::start(&self.arbiter, &self.key, signal);
    }
}

impl Future for Place {
    type Output = Result<Holding, LockError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Some(result) = this.waiter.take_or_register(context.waker()) {
            return Poll::Ready(result);
        }
        this.replace_lost_seeker();
        let ran_out = this
            .deadline
            .as_mut()
            .is_some_and(|deadline| Pin::new(deadline).poll(context).is_ready());
        if ran_out {
            this.deadline = None;
            if let Some(error) = this.run_out_of_patience() {
                return Poll::Ready(this.leave().unwrap_or(Err(error)));
            }
        }
        Poll::Pending
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A lease that was granted and not taken passes on here.
        drop(self.leave());
    }
}
