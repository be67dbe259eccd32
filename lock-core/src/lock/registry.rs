//! All keys that this process wants or holds, and the driver of their state machines.
//!
//! Each function here is an event. It reads the clock, locks the mutex of the key, and has its state machine make the transition.
//! After the mutex is free it carries out the actions. An event between the two finds the new state.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::Waker,
    time::Duration,
};

use crate::{
    error::{LeaseLost, LockError},
    fencing::FencingToken,
    key::{ErrorDetails, LockKey},
    lock::{
        context::{Context, terms::Terms},
        key_map::{KeyEntry, Keys, LiveLease, LiveState},
        key_state::{AfterRelease, Limits, Polled, Refusal, TaskId},
        lease_state::LeaseState,
        requests::{
            acquire_in_flight::{AcquireInFlight, read_reply},
            release::{self, Releasing},
            release_in_flight::{ReleaseInFlight, ReleaseListener},
            renewal::Renewal,
        },
    },
    mode::LockMode,
    runtime::{catch_panic::SpareWaker, clock::Moment},
    store::{Acquired, Failure, Renewed, grants::GrantListener, owner::Owner, owner_token::joined},
};

pub(crate) struct Registry {
    pub(crate) context: Arc<Context>,
    /// The prefix of every key on the server.
    pub(crate) prefix: String,
    /// How many tasks wait, for any key.
    pub(super) waiting: AtomicUsize,
    pub(super) renewal: Arc<Renewal>,
    pub(super) limits: Limits,
    pub(super) keys: Keys,
    last_task: AtomicU64,
}

/// What became of a task that began to wait.
pub(crate) enum Waiting {
    /// It has the lock.
    Taken(Arc<LeaseState>),
    /// Its id, and the request that it is to poll.
    InQueue(TaskId, Option<Arc<AcquireInFlight>>),
}

impl Registry {
    pub(crate) fn new(context: Arc<Context>, prefix: String, limits: Limits) -> Arc<Self> {
        let registry = Arc::new(Self {
            context,
            prefix,
            waiting: AtomicUsize::new(0),
            renewal: Arc::new(Renewal::new()),
            limits,
            keys: Keys::default(),
            last_task: AtomicU64::new(0),
        });
        let listener: Weak<dyn GrantListener> = Arc::<Self>::downgrade(&registry);
        registry.context.grants.listen(listener);
        registry
    }

    /// A task takes the key at once, or begins to wait, until the deadline at most.
    pub(crate) fn wait(
        self: &Arc<Self>,
        key: &LockKey,
        terms: Terms,
        now: Moment,
        deadline: Option<Moment>,
        waker: &Waker,
    ) -> Result<Waiting, LockError> {
        let kind = terms.mode.kind();
        let mut waker = SpareWaker::new(waker);
        let id = TaskId(self.last_task.fetch_add(1, Ordering::Relaxed) + 1);
        let mut keys = self.keys.of(key);
        if kind == LockMode::Exclusive && keys.of(LockMode::Shared).contains_key(key) {
            drop(keys);
            // Done before the request is sent: the key is then free for the request if no task has the share.
            self.close_shares(key);
            keys = self.keys.of(key);
        }
        // Checked under the mutex that the state is made under: a shutdown looks at all states only once.
        if keys.is_closed {
            return Err(Refusal::Closed.into_error(key, now, ErrorDetails::default()));
        }
        let entry = keys.of(kind).entry(key.clone());
        let entry = entry.or_insert_with(|| {
            Box::new(KeyEntry {
                state: LiveState::new(kind),
                request: None,
                releasing: None,
                timer: None,
                _in_progress: self.context.in_progress.open(),
            })
        });
        let (waits, mut todo) = self.step(key, kind, now, entry, |entry, cx| {
            let lease = self.lease_maker(key, now);
            if kind == LockMode::Shared
                && let Some(lease) = entry.state.join_share(id, &terms, lease, cx)
            {
                return Ok(Some(lease));
            }
            entry
                .state
                .wait(id, terms, deadline, waker.slot(), cx)
                .map(|()| None)
        });
        todo.remove_ended(&mut keys, key, kind);
        drop(keys);
        let request = self.carry_out(key, kind, todo);
        match waits {
            Ok(Some(lease)) => Ok(Waiting::Taken(lease)),
            Ok(None) => Ok(Waiting::InQueue(id, request)),
            Err(refusal) => Err(self.refused(key, refusal)),
        }
    }

    /// No share that this process has of the key admits a further task from now on.
    pub(crate) fn close_shares(self: &Arc<Self>, key: &LockKey) {
        self.event(key, LockMode::Shared, |entry, cx| {
            entry.state.close_shares(cx);
        });
    }

    /// No share of this process admits a further task from now on. Returns whether there was a share.
    pub(crate) fn close_all_shares(self: &Arc<Self>) -> bool {
        let mut shared = Vec::new();
        for mut keys in self.keys.each() {
            shared.extend(keys.of(LockMode::Shared).keys().cloned());
        }
        for key in &shared {
            self.close_shares(key);
        }
        !shared.is_empty()
    }

    /// What observers see of a lease that a task takes now.
    fn lease_maker(
        self: &Arc<Self>,
        key: &LockKey,
        now: Moment,
    ) -> impl FnOnce(&LiveLease, TaskId, &Terms, FencingToken) -> Arc<LeaseState> {
        move |held, id, terms, fencing| {
            Arc::new(LeaseState::new(self, key, held, (id, terms, fencing), now))
        }
    }

    /// The error of a refusal. It names the holder in this process, if there is one by now.
    pub(crate) fn refused(&self, key: &LockKey, refusal: Refusal) -> LockError {
        let now = self.context.clock.now();
        let busy = self.busy(key, now);
        refusal.into_error(key, now, busy)
    }

    /// What this process knows of a lock that is busy.
    pub(super) fn busy(&self, key: &LockKey, now: Moment) -> ErrorDetails {
        let keys = self.keys.of(key);
        let mut leases = keys.each(key).flat_map(|entry| entry.state.leases());
        let lease = leases.next();
        drop(leases);
        drop(keys);
        ErrorDetails {
            held_by: lease.map(|lease| lease.held_by(now)),
            typical_hold: self.keys.typical_hold(key),
            ..ErrorDetails::default()
        }
    }

    /// A task polls, perhaps with the reply to the request that it polled. Returns the request that the task is to poll next.
    pub(crate) fn poll(
        self: &Arc<Self>,
        key: &LockKey,
        kind: LockMode,
        id: TaskId,
        now: Moment,
        waker: &Waker,
        reply: Option<(Arc<AcquireInFlight>, Result<Acquired, Failure>)>,
    ) -> (Polled<Arc<LeaseState>>, Option<Arc<AcquireInFlight>>) {
        let mut waker = SpareWaker::new(waker);
        let reply = reply.map(|(request, result)| {
            let reply = read_reply(&self.context, &request.owner, result);
            (request.owner.clone(), reply)
        });
        let polled = self.event_at(now, key, kind, |entry, cx| {
            if let Some((owner, reply)) = reply {
                entry.request = None;
                // The task is being polled, and needs no wake-up for the result of this reply.
                entry.state.take_waker(id, cx);
                entry.state.acquired(&owner, reply, cx);
            }
            let lease = self.lease_maker(key, cx.now);
            entry.state.poll(id, waker.slot(), lease, cx)
        });
        match polled {
            Some((Polled::Pending, request)) => {
                // On the caller's runtimes, the task of the timers may have ended with the runtime that it ran on.
                self.keep_ticking();
                (Polled::Pending, request)
            }
            Some(polled) => polled,
            None => (Polled::Refused(Refusal::Closed), None),
        }
    }

    /// A task that waits leaves.
    pub(crate) fn leave(self: &Arc<Self>, key: &LockKey, kind: LockMode, id: TaskId) {
        self.event(key, kind, |entry, cx| {
            entry.state.leave(id, cx);
        });
    }

    /// A task begins to run under its lease.
    pub(crate) fn begin(self: &Arc<Self>, lease: &LeaseState, now: Moment) {
        self.event(&lease.key, lease.kind(), |entry, cx| {
            entry.state.begin(lease.id, now, cx);
        });
    }

    /// From now on a lease is not renewed.
    pub(crate) fn stop_renewing(self: &Arc<Self>, lease: &LeaseState) {
        self.event(&lease.key, lease.kind(), |entry, cx| {
            entry.state.stop_renewing(lease.id, cx);
        });
    }

    /// A task releases. `None`: the lease stays in this process. The rest of a lost lease is given back, too.
    pub(crate) fn release(
        self: &Arc<Self>,
        lease: &LeaseState,
        now: Moment,
        lost: Option<LeaseLost>,
    ) -> Option<Releasing> {
        let (key, kind) = (&lease.key, lease.kind());
        let mut keys = self.keys.of(key);
        keys.note_hold(key, lease.held_for(now));
        let released = self.step_if_known(&mut keys, key, kind, now, |entry, cx| {
            let after = entry.state.release(lease.id, &lease.owner, cx);
            let unanswered = matches!(after, AfterRelease::GiveBack(_)).then(|| {
                let releasing = entry.releasing.insert(ReleaseInFlight::default());
                let listener: Weak<dyn ReleaseListener> = Arc::<Self>::downgrade(self);
                releasing.begin(listener, key, kind)
            });
            (after, unanswered)
        });
        drop(keys);
        let (released, todo) = released.unzip();
        let (after, unanswered) = released.unwrap_or((AfterRelease::NotHeld, None));
        let asks = matches!(&todo, Some(todo) if todo.asks());
        let carry_out = || todo.map(|todo| self.carry_out(key, kind, todo));
        let action = match after {
            AfterRelease::Passed => {
                carry_out();
                return lost.map(|reason| Releasing::lost(key.clone(), reason));
            }
            AfterRelease::GiveBack(action) => action,
            AfterRelease::NotHeld => lease.release_action(),
        };
        let mut releasing = release::release(&self.context, key, action, now, lost, unanswered);
        // The release reaches the connection before the next request for the key.
        if asks {
            releasing.send();
        }
        carry_out();
        Some(releasing)
    }

    /// A lease is lost.
    pub(crate) fn lose(self: &Arc<Self>, lease: &LeaseState, reason: LeaseLost) {
        self.event(&lease.key, lease.kind(), |entry, cx| {
            entry.state.lose(lease.id, reason, cx);
        });
    }

    /// The lease of a key is lost, whichever task has it. Returns whether there was a lease.
    #[cfg(feature = "testing")]
    pub(crate) fn lose_key(self: &Arc<Self>, key: &LockKey, reason: LeaseLost) -> bool {
        let lost = LockMode::ALL.map(|kind| {
            let lost = self.event(key, kind, |entry, cx| entry.state.lose_any(reason, cx));
            lost.is_some_and(|(is_held, _)| is_held)
        });
        lost.contains(&true)
    }

    #[cfg(feature = "testing")]
    pub(crate) fn is_held(&self, key: &LockKey) -> bool {
        let keys = self.keys.of(key);
        keys.each(key).any(|entry| entry.state.is_held())
    }

    /// The server replied to a renewal, or did not reply in time.
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
        self.event(key, owner.mode.kind(), |entry, cx| {
            let state = &mut entry.state;
            state.renewed(owner, sent, result, retry_in, cx);
        });
    }

    /// A timer hint has fired.
    pub(crate) fn tick(self: &Arc<Self>, key: &LockKey, kind: LockMode) {
        self.event(key, kind, |entry, cx| {
            entry.timer = None;
            entry.state.tick(cx);
        });
    }

    /// Whether no task may wait any more. Not to be called in a forked child, in which the mutex may stay locked.
    pub(crate) fn is_closed(&self) -> bool {
        self.keys.each().any(|keys| keys.is_closed)
    }

    /// No task waits from now on.
    pub(crate) fn close(self: &Arc<Self>) {
        for mut keys in self.keys.each() {
            keys.is_closed = true;
        }
        for (key, kind) in self.all_keys() {
            self.event(&key, kind, |entry, cx| entry.state.close(cx));
        }
    }

    /// All leases are lost.
    pub(crate) fn lose_all(self: &Arc<Self>, reason: LeaseLost) {
        for (key, kind) in self.all_keys() {
            self.event(&key, kind, |entry, cx| {
                entry.state.lose_any(reason, cx);
            });
        }
    }

    /// How many tasks wait for a key, and in how many modes.
    pub(crate) fn waiters(&self, key: &LockKey) -> (usize, usize) {
        let keys = self.keys.of(key);
        let each = keys.each(key).map(|entry| entry.state.waiters());
        let waiting = each.filter(|waiters| *waiters > 0);
        waiting.fold((0, 0), |(tasks, modes), waiters| {
            (tasks + waiters, modes + 1)
        })
    }

    /// How many tasks wait for a key in one mode.
    pub(super) fn waiters_in(&self, key: &LockKey, kind: LockMode) -> usize {
        let mut keys = self.keys.of(key);
        let entry = keys.get_mut(key, kind);
        entry.map_or(0, |entry| entry.state.waiters())
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.each().all(|keys| keys.is_empty())
    }

    /// A key as the server knows it.
    pub(crate) fn full_key(&self, key: &LockKey) -> Arc<str> {
        joined(&[&self.prefix, key.as_str()])
    }

    /// All keys, sorted: the order of the maps differs from run to run.
    fn all_keys(&self) -> Vec<(LockKey, LockMode)> {
        let mut all = Vec::new();
        for mut keys in self.keys.each() {
            for kind in LockMode::ALL {
                all.extend(keys.of(kind).keys().map(|key| (key.clone(), kind)));
            }
        }
        all.sort();
        all
    }
}

impl Drop for Registry {
    /// Ends the task of the timers.
    fn drop(&mut self) {
        self.renewal.wake();
    }
}
