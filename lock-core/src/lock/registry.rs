//! All keys that this process wants or holds, and the driver of their state machines.
//!
//! Each function here is an event: it reads the clock, locks the mutex, has the state machine of the key make its transition, and
//! carries out the actions after the mutex is free. What comes between the two finds the new state.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    task::Waker,
    time::Duration,
};

use crate::{
    error::{LeaseLost, LockError},
    key::{Busy, LockKey},
    lock::{
        acquire_in_flight::AcquireInFlight,
        actions::{Todo, read_reply},
        context::Context,
        key_state::{
            AcquireAction, Action, AfterRelease, KeyState, Limits, Polled, Refusal, TaskId,
            Transition,
        },
        lease_state::LeaseState,
        release::{self, Releasing},
        release_in_flight::{ReleaseInFlight, ReleaseListener},
        renewal::Renewal,
    },
    options::Terms,
    runtime::{
        clock::Moment,
        jitter::jittered,
        mutex::Mutex,
        tally::{Open, Tally},
        timer_queue::TimerId,
    },
    store::{Acquired, Failure, Renewed, grants::GrantListener, owner::Owner},
};

type LiveState = KeyState<Waker, Arc<LeaseState>, Arc<Owner>>;
pub(super) type StateAction = Action<Waker, Arc<LeaseState>, Arc<Owner>>;
type StateTransition<'a> = Transition<'a, Waker, Arc<LeaseState>, Arc<Owner>>;

pub(crate) struct Registry {
    pub(crate) context: Arc<Context>,
    /// The prefix of every key on the server.
    pub(crate) prefix: String,
    pub(crate) waiting: Arc<Tally>,
    pub(super) renewal: Arc<Renewal>,
    pub(super) limits: Limits,
    pub(super) keys: Mutex<KeyMap>,
    last_task: AtomicU64,
}

#[derive(Default)]
pub(super) struct KeyMap {
    pub(super) entries: HashMap<LockKey, KeyEntry>,
    /// How long keys of each template were lately held. There are as many templates as the program has.
    typical_holds: HashMap<&'static str, Duration>,
    /// After a shutdown no task may wait any more.
    is_closed: bool,
}

impl KeyMap {
    fn typical_hold(&self, key: &LockKey) -> Option<Duration> {
        self.typical_holds.get(key.template()?).copied()
    }

    /// A moving average, in which the last eight holds have two thirds of the weight.
    fn note_hold(&mut self, key: &LockKey, held: Duration) {
        if let Some(template) = key.template() {
            let typical = self.typical_holds.entry(template).or_insert(held);
            *typical = *typical / 8 * 7 + held / 8;
        }
    }
}

pub(super) struct KeyEntry {
    pub(super) state: LiveState,
    /// The request in flight that a task polls.
    request: Option<Arc<AcquireInFlight>>,
    /// The last release of this process, as long as it has no answer: the next request leaves behind it.
    releasing: Option<ReleaseInFlight>,
    timer: Option<TimerId>,
    /// A shutdown waits for it.
    _in_progress: Open,
}

impl Registry {
    pub(crate) fn new(context: Arc<Context>, prefix: String, limits: Limits) -> Arc<Self> {
        let registry = Arc::new(Self {
            context,
            prefix,
            waiting: Arc::default(),
            renewal: Arc::new(Renewal::new()),
            limits,
            keys: Mutex::default(),
            last_task: AtomicU64::new(0),
        });
        let listener: Weak<dyn GrantListener> = Arc::<Self>::downgrade(&registry);
        registry.context.grants.listen(listener);
        registry
    }

    /// A task begins to wait, until the deadline at most. Returns the request that it is to poll.
    pub(crate) fn wait(
        self: &Arc<Self>,
        key: &LockKey,
        terms: Terms,
        deadline: Option<Moment>,
        waker: &Waker,
    ) -> Result<(TaskId, Option<Arc<AcquireInFlight>>), LockError> {
        let now = self.context.clock.now();
        // A waker is the user's code: it is cloned before the mutex is taken.
        let waker = waker.clone();
        let id = TaskId(self.last_task.fetch_add(1, Ordering::Relaxed) + 1);
        let mut keys = self.keys.lock();
        if keys.is_closed {
            return Err(Refusal::Closed.into_error(key, now, Busy::default()));
        }
        let entry = keys.entries.entry(key.clone());
        let entry = entry.or_insert_with(|| KeyEntry {
            state: LiveState::default(),
            request: None,
            releasing: None,
            timer: None,
            _in_progress: self.context.in_progress.open(),
        });
        let (waits, actions) = self.transition(key, now, |cx| {
            entry.state.wait(id, terms, deadline, waker, cx)
        });
        let todo = self.settle(key, &mut keys, actions);
        drop(keys);
        let request = self.carry_out(key, todo);
        match waits {
            Ok(()) => Ok((id, request)),
            Err(refusal) => Err(self.refused(key, refusal)),
        }
    }

    /// The error of a refusal, with the holder of this process, if there is one by now.
    pub(crate) fn refused(&self, key: &LockKey, refusal: Refusal) -> LockError {
        let now = self.context.clock.now();
        let busy = self.busy(key, now);
        refusal.into_error(key, now, busy)
    }

    /// What this process knows of a lock that is busy.
    pub(super) fn busy(&self, key: &LockKey, now: Moment) -> Busy {
        let keys = self.keys.lock();
        let leases = keys.entries.get(key).map(|entry| entry.state.leases());
        let lease = leases.and_then(|leases| leases.into_iter().next());
        Busy {
            held_by: lease.map(|lease| lease.held_by(now)),
            typical_hold: keys.typical_hold(key),
        }
    }

    /// A task polls, perhaps with the reply to the request that it polled. Returns the request that it is to poll next.
    pub(crate) fn poll(
        self: &Arc<Self>,
        key: &LockKey,
        id: TaskId,
        waker: &Waker,
        reply: Option<(Arc<AcquireInFlight>, Result<Acquired, Failure>)>,
    ) -> (Polled<Arc<LeaseState>>, Option<Arc<AcquireInFlight>>) {
        // A waker is the user's code: it is cloned before the mutex is taken.
        let waker = waker.clone();
        let reply = reply.map(|(request, result)| {
            let reply = read_reply(&self.context, &request.owner, result);
            (request.owner.clone(), reply)
        });
        let polled = self.event(key, |entry, cx| {
            if let Some((owner, reply)) = reply {
                entry.request = None;
                // It is polled now, and needs no wake-up for what this reply brings.
                entry.state.take_waker(id, cx);
                entry.state.acquired(&owner, reply, cx);
            }
            let now = cx.now;
            let lease =
                |held: &_, holder: &_| Arc::new(LeaseState::new(self, key, held, holder, now));
            entry.state.poll(id, waker, lease, cx)
        });
        match polled {
            Some((Polled::Pending, request)) => {
                // On the caller's runtimes, the task of the timers may have ended with the one it ran on.
                self.keep_ticking();
                (Polled::Pending, request)
            }
            Some(polled) => polled,
            None => (Polled::Refused(Refusal::Closed), None),
        }
    }

    /// A task that waits leaves.
    pub(crate) fn leave(self: &Arc<Self>, key: &LockKey, id: TaskId) {
        self.event(key, |entry, cx| {
            entry.state.leave(id, cx);
        });
    }

    /// A task begins to run under its lease.
    pub(crate) fn begin(self: &Arc<Self>, lease: &LeaseState, now: Moment) {
        self.event(&lease.key, |entry, cx| {
            entry.state.begin(lease.id, now, cx);
        });
    }

    /// From now on a lease is not renewed.
    pub(crate) fn stop_renewing(self: &Arc<Self>, lease: &LeaseState) {
        self.event(&lease.key, |entry, cx| {
            entry.state.stop_renewing(lease.id, cx);
        });
    }

    /// A task releases. `None`: the next task has the lock. Of a lease that is lost the rest is given back.
    pub(crate) fn release(
        self: &Arc<Self>,
        lease: &LeaseState,
        lost: Option<LeaseLost>,
    ) -> Option<Releasing> {
        let key = &lease.key;
        let now = self.context.clock.now();
        let mut keys = self.keys.lock();
        keys.note_hold(key, lease.held_for(now));
        let (after, actions) = match keys.entries.get_mut(key) {
            Some(entry) => self.transition(key, now, |cx| entry.state.release(lease.id, cx)),
            None => (AfterRelease::NotHeld, Vec::new()),
        };
        let unanswered = match (&after, keys.entries.get_mut(key)) {
            (AfterRelease::GiveBack(_), Some(entry)) => {
                let releasing = entry.releasing.insert(ReleaseInFlight::default());
                let listener: Weak<dyn ReleaseListener> = Arc::<Self>::downgrade(self);
                Some(releasing.begin(listener, key))
            }
            _ => None,
        };
        let todo = self.settle(key, &mut keys, actions);
        drop(keys);
        let action = match after {
            AfterRelease::Passed => None,
            AfterRelease::GiveBack(action) => Some(action),
            AfterRelease::NotHeld => Some(lease.release_action()),
        };
        let mut releasing =
            action.map(|action| release::release(&self.context, key, action, lost, unanswered));
        // The release reaches the connection before the next request for the key.
        if let Some(releasing) = &mut releasing
            && todo.asks()
        {
            releasing.send();
        }
        self.carry_out(key, todo);
        releasing
    }

    /// A lease is lost.
    pub(crate) fn lose(self: &Arc<Self>, lease: &LeaseState, reason: LeaseLost) {
        self.event(&lease.key, |entry, cx| {
            entry.state.lose(lease.id, reason, cx);
        });
    }

    /// The lease of a key is lost, whichever task has it. Returns whether one did.
    #[cfg(feature = "testing")]
    pub(crate) fn lose_key(self: &Arc<Self>, key: &LockKey, reason: LeaseLost) -> bool {
        let lost = self.event(key, |entry, cx| entry.state.lose_any(reason, cx));
        lost.is_some_and(|(is_held, _)| is_held)
    }

    #[cfg(feature = "testing")]
    pub(crate) fn is_held(&self, key: &LockKey) -> bool {
        let keys = self.keys.lock();
        let entry = keys.entries.get(key);
        entry.is_some_and(|entry| entry.state.is_held())
    }

    /// The server replied to a renewal, or did not within its time.
    pub(crate) fn renewed(
        self: &Arc<Self>,
        key: &LockKey,
        owner: &Arc<Owner>,
        sent: Moment,
        result: &Result<Renewed, Failure>,
        retry_in: Duration,
    ) {
        self.context.outage.note(result, &self.context.clock);
        if let Err(failure) = result {
            tracing::debug!(key = %key.shown(), ?failure, "a renewal failed");
        }
        self.event(key, |entry, cx| {
            let state = &mut entry.state;
            state.renewed(owner, sent, result, retry_in, cx);
        });
    }

    /// A timer hint has fired.
    pub(crate) fn tick(self: &Arc<Self>, key: &LockKey) {
        self.event(key, |entry, cx| {
            entry.timer = None;
            entry.state.tick(cx);
        });
    }

    /// No task waits from now on.
    pub(crate) fn close(self: &Arc<Self>) {
        self.keys.lock().is_closed = true;
        for key in self.all_keys() {
            self.event(&key, |entry, cx| entry.state.close(cx));
        }
    }

    /// All leases are lost.
    pub(crate) fn lose_all(self: &Arc<Self>, reason: LeaseLost) {
        for key in self.all_keys() {
            self.event(&key, |entry, cx| {
                entry.state.lose_any(reason, cx);
            });
        }
    }

    /// How many tasks wait for a key.
    pub(crate) fn waiters(&self, key: &LockKey) -> usize {
        let keys = self.keys.lock();
        let entry = keys.entries.get(key);
        entry.map_or(0, |entry| entry.state.waiters())
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.lock().entries.is_empty()
    }

    /// A key as the server knows it.
    pub(crate) fn full_key(&self, key: &LockKey) -> Arc<str> {
        format!("{}{}", self.prefix, key.as_str()).into()
    }

    /// In an order that does not depend on the map's, which differs from run to run.
    fn all_keys(&self) -> Vec<LockKey> {
        let mut keys: Vec<_> = self.keys.lock().entries.keys().cloned().collect();
        keys.sort();
        keys
    }

    /// One transition of a key that is here, and what it causes. Returns its result, and the request that the polling task is to poll.
    pub(super) fn event<T>(
        self: &Arc<Self>,
        key: &LockKey,
        transition: impl FnOnce(&mut KeyEntry, &mut StateTransition<'_>) -> T,
    ) -> Option<(T, Option<Arc<AcquireInFlight>>)> {
        let now = self.context.clock.now();
        let mut keys = self.keys.lock();
        let entry = keys.entries.get_mut(key)?;
        let (result, actions) = self.transition(key, now, |cx| transition(entry, cx));
        let todo = self.settle(key, &mut keys, actions);
        drop(keys);
        Some((result, self.carry_out(key, todo)))
    }

    fn transition<T>(
        &self,
        key: &LockKey,
        now: Moment,
        transition: impl FnOnce(&mut StateTransition<'_>) -> T,
    ) -> (T, Vec<StateAction>) {
        let new_owner = || {
            Arc::new(Owner::new(
                &self.context.owner_tokens,
                &self.context.grants,
                key,
                self.full_key(key),
            ))
        };
        let mut cx = Transition {
            now,
            known_fencing: self.context.known_fencing(),
            limits: self.limits,
            polling_pause: self.context.timing.polling_pause,
            jitter: &jittered,
            new_owner: &new_owner,
            actions: Vec::new(),
        };
        let result = transition(&mut cx);
        (result, cx.actions)
    }

    /// Sets the timer of the key, notes which of its requests a task polls, and removes a state that is over. With the mutex.
    fn settle(&self, key: &LockKey, keys: &mut KeyMap, actions: Vec<StateAction>) -> Todo {
        let mut todo = Todo::default();
        let Some(entry) = keys.entries.get_mut(key) else {
            return todo;
        };
        for action in &actions {
            match action {
                Action::Arm(at) => {
                    let (timer, is_earlier) = self.renewal.timers.insert_quietly(*at, key.clone());
                    todo.wakes_timers |= is_earlier;
                    if let Some(replaced) = entry.timer.replace(timer) {
                        self.renewal.timers.remove(replaced);
                    }
                }
                Action::Acquire(AcquireAction {
                    owner, polled_by, ..
                }) => {
                    todo.behind.clone_from(&entry.releasing);
                    if polled_by.is_some() {
                        let request = Arc::new(AcquireInFlight::new(owner.clone()));
                        entry.request = Some(request.clone());
                        todo.to_poll = Some(request);
                    }
                }
                Action::TakeOverRequest => todo.to_take_over = entry.request.take(),
                Action::Release(_) => todo.releasing = Some(self.context.in_progress.open()),
                _ => {}
            }
        }
        if entry.state.is_over() && entry.releasing.is_none() {
            if let Some(timer) = entry.timer.take() {
                self.renewal.timers.remove(timer);
            }
            todo.ended = keys.entries.remove(key);
        }
        todo.actions = actions;
        todo
    }
}

impl ReleaseListener for Registry {
    fn released(&self, key: &LockKey, release: &ReleaseInFlight) {
        let mut keys = self.keys.lock();
        let Some(entry) = keys.entries.get_mut(key) else {
            return;
        };
        if entry.releasing.take_if(|last| last.is(release)).is_some() {
            let todo = self.settle(key, &mut keys, Vec::new());
            drop(keys);
            drop(todo);
        }
    }
}

impl Drop for Registry {
    /// Ends the task of the timers.
    fn drop(&mut self) {
        self.renewal.wake();
    }
}
