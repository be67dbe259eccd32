//! The one place where tasks wait: per process and key, first come, first served, with one of them on the network.
//!
//! A task that wants a key takes a place in the key's line. The first one starts an *acquire loop*: work of the manager
//! that asks the backend on behalf of whoever is at the head of the line. A user's future therefore owns nothing but a
//! place. Dropping it at any moment leaves nothing behind: the acquire loop goes on for those who stand behind it, or, if nobody
//! does, takes its request back. Whoever is granted the lease owns it from the moment the acquire loop hands it over.
//!
//! When a holder lets go and a task stands behind it, the server lease passes to that task at once, without a message: see
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
        context::Context,
        hand_off::Batch,
        held::{
            holding::Holding,
            lease_state::{LeaseState, OnLoss},
            server_lease::{Granted, ServerLease},
        },
        key_state::{AfterRelease, KeyState, KeyStates, LastReply, LocalHold, Phase},
        pending_flush::PendingFlush,
        prefetch,
        wait_queue::{WaitQueue, Waiter},
        waiting::WaitFuture,
    },
    options::{Terms, Wait},
    runtime::{clock::Moment, tally::Tally},
};

pub(crate) struct Registry {
    pub(crate) context: Arc<Context>,
    pub(crate) limits: Limits,
    /// Stands before every key on the server.
    pub(crate) prefix: String,
    pub(crate) waiting: Arc<Tally>,
    states: Mutex<KeyStates>,
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

impl Registry {
    pub(crate) fn new(context: Arc<Context>, prefix: String, limits: Limits) -> Self {
        Self {
            context,
            limits,
            prefix,
            waiting: Arc::default(),
            states: Mutex::default(),
        }
    }

    /// Takes a place in the key's line, until the deadline at most.
    pub(crate) fn join_queue(
        self: &Arc<Self>,
        key: &LockKey,
        terms: Terms,
        deadline: Option<Moment>,
    ) -> Result<WaitFuture, LockError> {
        self.check_limits(key)?;
        self.rejoin_queue(key, terms, deadline)
    }

    /// The same for a task that has been counted as one that waits.
    pub(crate) fn rejoin_queue(
        self: &Arc<Self>,
        key: &LockKey,
        terms: Terms,
        deadline: Option<Moment>,
    ) -> Result<WaitFuture, LockError> {
        let waiter = Arc::new(Waiter::new(terms));
        let mut states = self.lock();
        if states.closed {
            return Err(closed().about(key));
        }
        if let Some(state) = states.keys.get_mut(key) {
            if terms.wait == Wait::No && state.is_taken() {
                return Err(state.busy_error(key, terms.ttl, self.context.clock.now()));
            }
            state.queue.push(waiter.clone());
            drop(states);
            let wait = WaitFuture::new(
                self.clone(),
                key.clone(),
                waiter,
                PendingFlush::Flushed,
                deadline,
            );
            return Ok(wait);
        }
        let signal = Arc::new(Notify::new());
        let mut queue = WaitQueue::default();
        queue.push(waiter.clone());
        let state = KeyState {
            queue,
            phase: Phase::Acquiring(signal.clone()),
            last_reply: None,
        };
        states.keys.insert(key.clone(), state);
        drop(states);
        let wait = WaitFuture::new(
            self.clone(),
            key.clone(),
            waiter,
            PendingFlush::Buffered,
            deadline,
        );
        acquire_loop::start(self, key, signal);
        Ok(wait)
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
            .map_or(0, |state| state.queue.waiting().count())
    }

    /// Refuses new places from now on, and tells everybody in line.
    pub(crate) fn close(&self) {
        let mut states = self.lock();
        states.closed = true;
        // In an order that does not depend on the map's, which differs from run to run.
        let mut keys: Vec<_> = states.keys.iter_mut().collect();
        keys.sort_by_key(|(key, _)| *key);
        let mut all = Vec::new();
        for (key, state) in keys {
            all.extend(
                state
                    .queue
                    .take_all()
                    .into_iter()
                    .map(|waiter| (key.clone(), waiter)),
            );
            state.wake_acquire_loop();
        }
        drop(states);
        for (key, waiter) in all {
            refuse(&waiter, closed().about(&key));
        }
    }

    /// For a place: what is known, if its time is over. `None`: a first answer is still on its way, and will decide.
    pub(crate) fn known_error(&self, key: &LockKey, ttl: Duration) -> Option<LockError> {
        let states = self.lock();
        let state = states.keys.get(key)?;
        let known = matches!(state.phase, Phase::Held(_)) || state.last_reply.is_some();
        known.then(|| state.busy_error(key, ttl, self.context.clock.now()))
    }

    /// For a place that is given up.
    pub(crate) fn note_gone(&self, key: &LockKey) {
        if let Some(state) = self.lock().keys.get_mut(key) {
            state.queue.note_gone();
            state.wake_acquire_loop();
        }
    }

    /// For a place: starts an acquire loop where the last one was lost with its runtime.
    pub(crate) fn restart_lost_loop(self: &Arc<Self>, key: &LockKey) {
        let mut states = self.lock();
        let Some(state) = states.keys.get_mut(key) else {
            return;
        };
        if !matches!(state.phase, Phase::Orphaned) {
            return;
        }
        let signal = state.begin_acquiring();
        drop(states);
        acquire_loop::start(self, key, signal);
        self.context.store.flush();
    }

    /// For the acquire loop: whoever is at the head of the line, and how many stand behind. If nobody is there, the slot is gone
    /// afterwards.
    pub(crate) fn head(&self, key: &LockKey) -> Option<(Terms, usize)> {
        let mut states = self.lock();
        let state = states.keys.get_mut(key)?;
        if let Some(head) = state.queue.head() {
            return Some((head.terms, state.queue.length() - 1));
        }
        states.keys.remove(key);
        None
    }

    /// For the acquire loop: waits until nobody stands in line.
    ///
    /// Dropping the future changes nothing.
    pub(crate) async fn no_waiters(&self, key: &LockKey, signal: &Notify) {
        loop {
            signal.notified().await;
            let is_deserted = self
                .lock()
                .keys
                .get_mut(key)
                .is_none_or(|state| state.queue.head().is_none());
            if is_deserted {
                return;
            }
        }
    }

    /// For the acquire loop: passes on what the backend said, to those who wait for nothing more.
    pub(crate) fn tell(&self, key: &LockKey, reply: LastReply) {
        let mut states = self.lock();
        let Some(state) = states.keys.get_mut(key) else {
            return;
        };
        let impatient = state.queue.take_those(Waiter::is_past_deadline);
        let error = reply.error(key, self.context.clock.now());
        state.last_reply = Some(reply);
        drop(states);
        for waiter in impatient {
            refuse(&waiter, error.clone());
        }
    }

    /// For the acquire loop: tells everybody in line what no waiting can cure.
    pub(crate) fn fail_all(&self, key: &LockKey, error: &LockError) {
        let mut states = self.lock();
        let Some(state) = states.keys.get_mut(key) else {
            return;
        };
        let all = state.queue.take_all();
        drop(states);
        for waiter in all {
            refuse(&waiter, error.clone().about(key));
        }
    }

    /// For the acquire loop: tells those whose ttl is too short for this backend.
    pub(crate) fn fail_short_ttls(&self, key: &LockKey, ttl: Duration, error: &LockError) {
        let mut states = self.lock();
        let Some(state) = states.keys.get_mut(key) else {
            return;
        };
        let short = state.queue.take_those(|waiter| waiter.terms.ttl <= ttl);
        drop(states);
        for waiter in short {
            refuse(&waiter, error.clone().about(key));
        }
    }

    /// For the acquire loop: hands the grant to the first task in line that still wants it, if it wants such a one.
    pub(crate) fn hand_to_waiter(self: &Arc<Self>, key: &LockKey, mut grant: Granted) -> Handed {
        // A grant without a token is none.
        let Some(fencing) = grant.tokens.take() else {
            return Handed::OtherTtl;
        };
        // Bounded by the line: each round takes one waiter out of it.
        loop {
            let now = self.context.clock.now();
            let mut states = self.lock();
            let Some((state, waiter)) = states
                .keys
                .get_mut(key)
                .and_then(|state| state.queue.head().map(|head| (state, head)))
            else {
                states.keys.remove(key);
                return Handed::NoWaiter;
            };
            if waiter.terms.ttl != grant.ttl {
                // A longer ttl was not granted, and with a shorter one a crash would block others for too long.
                return Handed::OtherTtl;
            }
            state.queue.pop();
            let registry: Weak<dyn OnLoss> = Arc::<Self>::downgrade(self);
            let server_lease = Arc::new(ServerLease::new(
                self.context.clone(),
                key.clone(),
                &grant,
                &waiter.terms,
            ));
            let lease = Arc::new(LeaseState::new(
                server_lease.clone(),
                fencing,
                waiter.terms,
                registry,
            ));
            server_lease.begin_with(&lease);
            let impatient = state.queue.take_those(Waiter::is_past_deadline);
            let prefetching = state.queue.head().is_some();
            state.last_reply = None;
            state.phase = Phase::Held(LocalHold {
                lease: lease.clone(),
                waiter: waiter.clone(),
                tokens: grant.tokens,
                next_tokens: FencingBlock::EMPTY,
                batch: Batch::new(now),
                prefetching,
                between_tasks: false,
            });
            let verdict = state.busy_error(key, waiter.terms.ttl, now);
            drop(states);
            for waiter in impatient {
                refuse(&waiter, verdict.clone());
            }
            self.context.renewal.watch(&server_lease);
            match waiter.settle(Ok(Holding::new(lease, self.clone()))) {
                Ok(()) => {
                    if prefetching {
                        prefetch::start(self, &server_lease);
                    }
                    return Handed::Taken;
                }
                // The task went away between the two locks.
                Err(untaken) => {
                    server_lease.vacate();
                    self.context.renewal.forget(&server_lease);
                    forget(untaken);
                }
            }
        }
    }

    /// For the acquire loop that ends before its time: has the waiters start another.
    pub(crate) fn abandon_acquire(&self, key: &LockKey) {
        let mut states = self.lock();
        let Some(state) = states.keys.get_mut(key) else {
            return;
        };
        if state.queue.head().is_none() {
            states.keys.remove(key);
            return;
        }
        state.phase = Phase::Orphaned;
        let waiters: Vec<_> = state.queue.waiting().cloned().collect();
        drop(states);
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
        } else if self.context.held.count() >= held {
            format!(
                "{held} leases are held already, the most that this manager allows (max_leases)"
            )
        } else {
            return Ok(());
        };
        Err(LockError::unavailable(too_many).about(key))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, KeyStates> {
        // Nothing of the user's runs under this lock, and nothing of ours that panics.
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What became of a grant.
pub(crate) enum Handed {
    Taken,
    /// Nobody stands in line any more, and the slot is gone.
    NoWaiter,
    /// Whoever is next asks for another ttl.
    OtherTtl,
}

impl OnLoss for Registry {
    /// Whoever still holds the guard of a lost lease does not keep others from the lock.
    fn lost(self: Arc<Self>, lease: &LeaseState) {
        let mut states = self.lock();
        if states.hold_of_lease(lease).is_none() {
            return;
        }
        let next = states.give_back(&lease.server_lease.key);
        drop(states);
        if let AfterRelease::AcquireAgain(signal) = next {
            acquire_loop::start(&self, &lease.server_lease.key, signal);
            self.context.store.flush();
        }
    }

    fn unclaimed(self: Arc<Self>, lease: &LeaseState) {
        let mut states = self.lock();
        let Some(hold) = states.hold_of_lease(lease) else {
            return;
        };
        let waiter = hold.waiter.clone();
        drop(states);
        let Some(holding) = waiter.withdraw() else {
            return;
        };
        tracing::debug!(key = %lease.server_lease.key, "a task that was granted the lock was not polled; it goes to the next");
        if let Some(state) = self.lock().keys.get_mut(&lease.server_lease.key) {
            state.queue.push(waiter);
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
