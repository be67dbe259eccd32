//! The one place where tasks wait: per process and key, first come, first served, with one of them on the network.
//!
//! A task that wants a key takes a place in the key's line. The first one starts a *seeker*: work of the manager
//! that asks the backend on behalf of whoever is at the head of the line. A user's future therefore owns nothing but a
//! place. Dropping it at any moment leaves nothing behind: the seeker goes on for those who stand behind it, or, if nobody
//! does, takes its request back. Whoever is granted the lease owns it from the moment the seeker hands it over.
//!
//! When a holder lets go and a task stands behind it, the tenure passes to that task at once, without a message: see
//! `handoff.rs`.
//!
//! A key's slot is in one of three states:
//!
//! ```text
//!             first place taken                 granted
//!   (absent) ───────────────────▶ Seeking ──────────────────▶ Held ──┐ passed to the next task
//!       ▲                            │ nobody waits any more    │ ◀──┘
//!       └────────────────────────────┴──────────────────────────┤ let go
//!                                    ▲   others wait, and it    │
//!                                    └──────────────────────────┘ cannot be passed
//! ```

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use tokio::sync::Notify;

use crate::{
    error::LockError,
    fencing::FencingBlock,
    key::LockKey,
    lock::{
        acquire::acquire_loop,
        context::Engine,
        hand_off::Batch,
        held::{
            holding::Holding,
            lease_state::{LeaseState, OnLoss},
            server_lease::{Grant, Tenure},
        },
        key_state::{LastWord, Next, Seat, Slot, Slots, Turn},
        pending_flush::Leaving,
        prefetch,
        wait_queue::{Line, Waiter},
        waiting::Place,
    },
    options::{Terms, Wait},
    runtime::{clock::Moment, tally::Tally},
};

pub(crate) struct Arbiter {
    pub(crate) engine: Arc<Engine>,
    pub(crate) limits: Limits,
    /// Stands before every key on the server.
    pub(crate) prefix: String,
    pub(crate) waiting: Arc<Tally>,
    slots: Mutex<Slots>,
}

/// Bounds on what one manager holds in memory, and on what it keeps from others. See the setters of the builder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) held: usize,
    pub(crate) waiting: usize,
    pub(crate) handoffs: u32,
    pub(crate) handoff_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            held: 100_000,
            waiting: 100_000,
            handoffs: 64,
            handoff_time: Duration::from_millis(20),
        }
    }
}

impl Arbiter {
    pub(crate) fn new(engine: Arc<Engine>, prefix: String, limits: Limits) -> Self {
        Self {
            engine,
            limits,
            prefix,
            waiting: Arc::default(),
            slots: Mutex::default(),
        }
    }

    /// Takes a place in the key's line, until the deadline at most.
    pub(crate) fn stand(
        self: &Arc<Self>,
        key: &LockKey,
        terms: Terms,
        deadline: Option<Moment>,
    ) -> Result<Place, LockError> {
        self.check_limits(key)?;
        self.stand_again(key, terms, deadline)
    }

    /// The same for a task that has been counted as one that waits.
    pub(crate) fn stand_again(
        self: &Arc<Self>,
        key: &LockKey,
        terms: Terms,
        deadline: Option<Moment>,
    ) -> Result<Place, LockError> {
        let waiter = Arc::new(Waiter::new(terms));
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
            let place = Place::new(self.clone(), key.clone(), waiter, Leaving::Left, deadline);
            return Ok(place);
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
        let place = Place::new(self.clone(), key.clone(), waiter, Leaving::Made, deadline);
        acquire_loop::start(self, key, signal);
        Ok(place)
    }

    /// A key as the server knows it.
    pub(crate) fn full_key(&self, key: &LockKey) -> Arc<str> {
        format!("{}{}", self.prefix, key.as_str()).into()
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
        // In an order that does not depend on the map's, which differs from run to run.
        let mut keys: Vec<_> = slots.keys.iter_mut().collect();
        keys.sort_by_key(|(key, _)| *key);
        let mut all = Vec::new();
        for (key, slot) in keys {
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

    /// For a place: what is known, if its time is over. `None`: a first answer is still on its way, and will decide.
    pub(crate) fn verdict(&self, key: &LockKey, ttl: Duration) -> Option<LockError> {
        let slots = self.lock();
        let slot = slots.keys.get(key)?;
        let known = matches!(slot.seat, Seat::Held(_)) || slot.last_word.is_some();
        known.then(|| slot.verdict(key, ttl, self.engine.clock.now()))
    }

    /// For a place that is given up.
    pub(crate) fn note_gone(&self, key: &LockKey) {
        if let Some(slot) = self.lock().keys.get_mut(key) {
            slot.line.note_gone();
            slot.rouse_seeker();
        }
    }

    /// For a place: starts a seeker where the last one was lost with its runtime.
    pub(crate) fn replace_lost_seeker(self: &Arc<Self>, key: &LockKey) {
        let mut slots = self.lock();
        let Some(slot) = slots.keys.get_mut(key) else {
            return;
        };
        if !matches!(slot.seat, Seat::Vacant) {
            return;
        }
        let signal = slot.seek();
        drop(slots);
        acquire_loop::start(self, key, signal);
        self.engine.store.flush();
    }

    /// For the seeker: whoever is at the head of the line, and how many stand behind. If nobody is there, the slot is gone
    /// afterwards.
    pub(crate) fn head(&self, key: &LockKey) -> Option<(Terms, usize)> {
        let mut slots = self.lock();
        let slot = slots.keys.get_mut(key)?;
        if let Some(head) = slot.line.head() {
            return Some((head.terms, slot.line.length() - 1));
        }
        slots.keys.remove(key);
        None
    }

    /// For the seeker: waits until nobody stands in line.
    ///
    /// Dropping the future changes nothing.
    pub(crate) async fn deserted(&self, key: &LockKey, signal: &Notify) {
        loop {
            signal.notified().await;
            let is_deserted = self
                .lock()
                .keys
                .get_mut(key)
                .is_none_or(|slot| slot.line.head().is_none());
            if is_deserted {
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
        let impatient = slot.line.take_those(Waiter::has_lost_patience);
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

    /// For the seeker: tells those whose ttl is too short for this backend.
    pub(crate) fn tell_short(&self, key: &LockKey, ttl: Duration, error: &LockError) {
        let mut slots = self.lock();
        let Some(slot) = slots.keys.get_mut(key) else {
            return;
        };
        let short = slot.line.take_those(|waiter| waiter.terms.ttl <= ttl);
        drop(slots);
        for waiter in short {
            refuse(&waiter, error.clone().about(key));
        }
    }

    /// For the seeker: hands the grant to the first task in line that still wants it, if it wants such a one.
    pub(crate) fn offer(self: &Arc<Self>, key: &LockKey, mut grant: Grant) -> Offered {
        // A grant without a token is none.
        let Some(fencing) = grant.tokens.take() else {
            return Offered::Unlike;
        };
        // Bounded by the line: each round takes one waiter out of it.
        loop {
            let now = self.engine.clock.now();
            let mut slots = self.lock();
            let Some((slot, waiter)) = slots
                .keys
                .get_mut(key)
                .and_then(|slot| slot.line.head().map(|head| (slot, head)))
            else {
                slots.keys.remove(key);
                return Offered::ToNobody;
            };
            if waiter.terms.ttl != grant.ttl {
                // A longer ttl was not granted, and with a shorter one a crash would block others for too long.
                return Offered::Unlike;
            }
            slot.line.pop();
            let arbiter: Weak<dyn OnLoss> = Arc::<Self>::downgrade(self);
            let tenure = Arc::new(Tenure::new(
                self.engine.clone(),
                key.clone(),
                &grant,
                &waiter.terms,
            ));
            let lease = Arc::new(LeaseState::new(
                tenure.clone(),
                fencing,
                waiter.terms,
                arbiter,
            ));
            tenure.begin_with(&lease);
            let impatient = slot.line.take_those(Waiter::has_lost_patience);
            let asking = slot.line.head().is_some();
            slot.last_word = None;
            slot.seat = Seat::Held(Turn {
                lease: lease.clone(),
                waiter: waiter.clone(),
                tokens: grant.tokens,
                next_tokens: FencingBlock::EMPTY,
                batch: Batch::new(now),
                asking,
                between: false,
            });
            let verdict = slot.verdict(key, waiter.terms.ttl, now);
            drop(slots);
            for waiter in impatient {
                refuse(&waiter, verdict.clone());
            }
            self.engine.renewal.watch(&tenure);
            match waiter.settle(Ok(Holding::new(lease, self.clone()))) {
                Ok(()) => {
                    if asking {
                        prefetch::ask(self, &tenure);
                    }
                    return Offered::Taken;
                }
                // The task went away between the two locks.
                Err(untaken) => {
                    tenure.vacate();
                    self.engine.renewal.forget(&tenure);
                    forget(untaken);
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
        if slot.line.head().is_none() {
            slots.keys.remove(key);
            return;
        }
        slot.seat = Seat::Vacant;
        let waiters: Vec<_> = slot.line.waiting().cloned().collect();
        drop(slots);
        for waiter in waiters {
            waiter.wake();
        }
    }

    fn check_limits(&self, key: &LockKey) -> Result<(), LockError> {
        let Limits { held, waiting, .. } = self.limits;
        let too_many = if self.waiting.count() >= waiting {
            format!(
                "{waiting} tasks wait for locks already, the most that this manager allows (max_waiting)"
            )
        } else if self.engine.held.count() >= held {
            format!(
                "{held} leases are held already, the most that this manager allows (max_leases)"
            )
        } else {
            return Ok(());
        };
        Err(LockError::unavailable(too_many).about(key))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Slots> {
        // Nothing of the user's runs under this lock, and nothing of ours that panics.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What became of a grant.
pub(crate) enum Offered {
    Taken,
    /// Nobody stands in line any more, and the slot is gone.
    ToNobody,
    /// Whoever is next asks for another ttl.
    Unlike,
}

impl OnLoss for Arbiter {
    /// Whoever still holds the guard of a lost lease does not keep others from the lock.
    fn lost(self: Arc<Self>, lease: &LeaseState) {
        let mut slots = self.lock();
        if slots.turn_of_lease(lease).is_none() {
            return;
        }
        let next = slots.give_back(&lease.tenure.key);
        drop(slots);
        if let Next::Seeks(signal) = next {
            acquire_loop::start(&self, &lease.tenure.key, signal);
            self.engine.store.flush();
        }
    }

    fn unclaimed(self: Arc<Self>, lease: &LeaseState) {
        let mut slots = self.lock();
        let Some(turn) = slots.turn_of_lease(lease) else {
            return;
        };
        let waiter = turn.waiter.clone();
        drop(slots);
        let Some(holding) = waiter.withdraw() else {
            return;
        };
        tracing::debug!(key = %lease.tenure.key, "a task that was granted the lock was not polled; it goes to the next");
        if let Some(slot) = self.lock().keys.get_mut(&lease.tenure.key) {
            slot.line.push(waiter);
        }
        drop(holding);
    }
}

fn refuse(waiter: &Waiter, error: LockError) {
    // A waiter that went away needs no word.
    drop(waiter.settle(Err(error)));
}

fn closed() -> LockError {
    LockError::unavailable("this lock manager was shut down")
}

/// A holding that nobody took is not let go: another taker is found for what it holds.
pub(crate) fn forget(untaken: Result<Holding, LockError>) {
    if let Ok(holding) = untaken {
        holding.defuse();
    }
}
