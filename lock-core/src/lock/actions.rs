//! Carries out what the state machine of a key decided, when no mutex is held. Also the task of the timers.

use std::{
    marker::PhantomData,
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

use crate::{
    key::LockKey,
    lock::{
        key_map::{KeyEntry, KeyMap, StateAction},
        key_state::{AcquireAction, Action, BATCHED_WITHIN},
        registry::Registry,
        requests::{
            acquire_in_flight::{AcquireInFlight, read_reply},
            release,
            release_in_flight::ReleaseInFlight,
            renewal::RenewalDue,
        },
    },
    mode::LockMode,
    runtime::{catch_panic::catch_panic, executor::Executor, tally::Open},
    store::{Acquire, Acquired, ENDED, Failure, Prefetch, StoreFuture, owner::Owner},
    telemetry,
};

/// What is left to do after a transition, when the mutex is free.
#[derive(Default)]
pub(super) struct Todo {
    pub(super) actions: Vec<StateAction>,
    /// The request that the polling task is to poll.
    pub(super) to_poll: Option<Arc<AcquireInFlight>>,
    /// The release of the key in flight, behind which a request is sent.
    pub(super) behind: Option<ReleaseInFlight>,
    /// The request that the executor is to go on with.
    pub(super) to_take_over: Option<Arc<AcquireInFlight>>,
    pub(super) wakes_timers: bool,
    /// Open for a release among the actions: a shutdown waits until that release has begun.
    pub(super) releasing: Option<Open>,
    /// Whether the entry is to be removed from the map.
    pub(super) is_over: bool,
    /// The entry that was removed from the map: dropping it may wake a shutdown.
    pub(super) ended: Option<Box<KeyEntry>>,
}

impl Todo {
    /// Takes the entry out of the map, if the transition left nothing to do. Called with the mutex locked.
    pub(super) fn remove_ended(&mut self, keys: &mut KeyMap, key: &LockKey, kind: LockMode) {
        if self.is_over {
            self.ended = keys.of(kind).remove(key);
        }
    }

    /// Whether a request for the key is among the actions.
    pub(super) fn asks(&self) -> bool {
        let mut actions = self.actions.iter();
        actions.any(|action| matches!(action, Action::Acquire(_)))
    }
}

impl Registry {
    /// Carries out actions, in their order. Returns the request that the polling task is to poll.
    pub(super) fn carry_out(
        self: &Arc<Self>,
        key: &LockKey,
        kind: LockMode,
        todo: Todo,
    ) -> Option<Arc<AcquireInFlight>> {
        if todo.wakes_timers {
            self.renewal.timers.wake();
            self.keep_ticking();
        }
        for action in todo.actions {
            #[cfg(test)]
            crate::runtime::mutex::interleaved::point();
            match action {
                // A waker is the user's code, which may panic when it wakes or is dropped.
                Action::Wake(waker) => catch_panic(|| waker.wake()),
                Action::Drop(waker) => catch_panic(|| drop(waker)),
                Action::Acquire(acquire) => {
                    self.send(key, acquire, todo.to_poll.as_deref(), todo.behind.as_ref());
                }
                Action::Renew {
                    owner,
                    ttl,
                    valid_until,
                } => self.renewal.push(key, owner, ttl, valid_until),
                Action::Prefetch { owner, ttl, tokens } => self.prefetch(key, owner, ttl, tokens),
                Action::Release(action) => {
                    let now = self.context.clock.now();
                    drop(release::release(
                        &self.context,
                        key,
                        action,
                        now,
                        None,
                        None,
                    ));
                }
                Action::Learn(owner, token) => self.context.known_tokens.learn(owner.clock, token),
                Action::Extend { lease, valid_until } => lease.extend(valid_until),
                Action::End { lease, reason } => {
                    lease.end(reason);
                }
                Action::HandedOn(how) => telemetry::handed_on(key, kind, how),
                Action::Arm(_) | Action::TakeOverRequest => {}
            }
        }
        if let Some(request) = todo.to_take_over {
            self.finish_elsewhere(key, &request);
        }
        drop((todo.releasing, todo.ended));
        todo.to_poll
    }

    fn send(
        self: &Arc<Self>,
        key: &LockKey,
        action: AcquireAction<Arc<Owner>>,
        to_poll: Option<&AcquireInFlight>,
        behind: Option<&ReleaseInFlight>,
    ) {
        let owner = action.owner;
        let request = Acquire {
            full_key: owner.full_key.clone(),
            token: owner.token.clone(),
            ttl: action.ttl,
            known_fencing: action.known_fencing,
            tokens: action.tokens,
            queue_mode: action.queue_mode,
            entry: match action.queued_ttl {
                Some(ttl) => owner.entry.join(ttl),
                None => owner.entry.in_queue(),
            },
            behind: None,
            in_flight: owner.in_flight.clone(),
        };
        let reply = match behind.filter(|release| !release.is_answered()) {
            None => self.context.store.acquire(request),
            Some(release) => {
                let (context, owner) = (self.context.clone(), owner.clone());
                Box::pin(release.clone().acquire_behind(context, owner, request))
            }
        };
        match to_poll.filter(|_| action.polled_by.is_some()) {
            Some(request) => {
                if let Some(reply) = request.send(reply) {
                    self.finish(key, owner, reply);
                }
            }
            None => self.finish(key, owner, reply),
        }
    }

    /// Has the executor go on with a request, when its task has left or does not poll.
    pub(super) fn finish_elsewhere(self: &Arc<Self>, key: &LockKey, request: &AcquireInFlight) {
        let Some(reply) = request.take() else {
            return;
        };
        let owner = request.owner.clone();
        // The in-memory backend executes a request when it is made. A reply that a test delays need not be waited for.
        let has_waiters = || self.waiters_in(key, owner.mode.kind()) > 0;
        if matches!(self.context.executor, Executor::Caller) && !has_waiters() {
            drop(reply);
            return self.acquired(key, &owner, Err(Failure::unanswered("its task has left")));
        }
        self.finish(key, owner, reply);
    }

    /// The server replied to a request for a key, which the executor waited for.
    fn acquired(
        self: &Arc<Self>,
        key: &LockKey,
        owner: &Arc<Owner>,
        result: Result<Acquired, Failure>,
    ) {
        let reply = read_reply(&self.context, owner, result);
        self.event(key, owner.mode.kind(), |entry, cx| {
            entry.state.acquired(owner, reply, cx);
        });
    }

    /// Has the executor wait for the reply to a request.
    fn finish(self: &Arc<Self>, key: &LockKey, owner: Arc<Owner>, reply: StoreFuture<Acquired>) {
        let (registry, key) = (self.clone(), key.clone());
        tell_reply(&self.context.executor, reply, move |result| {
            registry.acquired(&key, &owner, result);
        });
    }

    fn prefetch(self: &Arc<Self>, key: &LockKey, owner: Arc<Owner>, ttl: Duration, tokens: u32) {
        let reply = self.context.store.prefetch(Prefetch {
            full_key: owner.full_key.clone(),
            token: owner.token.clone(),
            ttl,
            known_fencing: self.context.known_tokens.of(owner.clock),
            tokens,
        });
        let (registry, key) = (self.clone(), key.clone());
        tell_reply(&self.context.executor, reply, move |result| {
            if let Err(failure) = &result {
                tracing::debug!(key = %key.shown(), ?failure, "no fencing tokens were prefetched");
            }
            registry.event(&key, owner.mode.kind(), |entry, cx| {
                entry.state.prefetched(&owner, &result, cx);
            });
        });
    }
}

/// Clears the flag when the task ends, for whatever reason. Also wakes the waiters and the observers of leases, which start another
/// task.
struct Running(Weak<Registry>);

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(registry) = self.0.upgrade() {
            registry.renewal.is_running.store(false, Ordering::Release);
            registry.rouse_all();
        }
    }
}

impl Registry {
    /// Wakes all waiters, and all observers of leases, which look again.
    fn rouse_all(&self) {
        let (mut wakers, mut leases) = (Vec::new(), Vec::new());
        for mut keys in self.keys.each() {
            for entry in keys.all_mut() {
                wakers.extend(entry.state.take_wakers());
                leases.extend(entry.state.leases());
            }
        }
        for waker in wakers {
            catch_panic(|| waker.wake());
        }
        for lease in leases {
            lease.rouse();
        }
    }

    /// Starts the task of the timers, if it does not run.
    pub(crate) fn keep_ticking(self: &Arc<Self>) {
        let is_running = &self.renewal.is_running;
        // Usually the task runs, and a write would take the flag from the caches of other threads.
        if !is_running.load(Ordering::Acquire) && !is_running.swap(true, Ordering::AcqRel) {
            // The task has no strong reference: the manager and its thread end with their last user.
            let registry = Arc::downgrade(self);
            let running = Running(registry.clone());
            self.context.executor.spawn(async move {
                let _running = running;
                tick(registry).await;
            });
        }
    }
}

/// Runs until the manager ends, or the runtime that the task was started on.
async fn tick(registry: Weak<Registry>) {
    loop {
        let Some((renewal, clock)) = registry
            .upgrade()
            .map(|registry| (registry.renewal.clone(), registry.context.clock.clone()))
        else {
            return;
        };
        let hints = tokio::select! {
            biased;
            // The timers are first: frequent changes must not delay them. Batches are sent after either branch.
            hints = renewal.timers.due(&clock, BATCHED_WITHIN) => hints,
            () = renewal.changed.notified() => Vec::new(),
        };
        let Some(registry) = registry.upgrade() else {
            return;
        };
        for (key, kind) in hints {
            registry.tick(&key, kind);
        }
        while let Some((batch, within)) = renewal.next_batch(&registry.context) {
            renew(&registry, batch, within);
        }
    }
}

fn renew(registry: &Arc<Registry>, batch: Vec<RenewalDue>, within: Duration) {
    let context = &registry.context;
    // Read before the request is handed over: the server's time starts later than this, never earlier.
    let sent = context.clock.now();
    let requests = batch
        .iter()
        .map(|one| one.owner.renew_request(one.ttl))
        .collect();
    let reply = context.store.renew(requests, within);
    let told = registry.clone();
    // The executor waits for the reply, not this task: a slow reply delays neither other renewals nor the end of a lease.
    tell_reply(&context.executor, reply, move |answers| {
        told.renewal.in_flight.fetch_sub(1, Ordering::AcqRel);
        told.renewal.wake();
        let mut answers = answers.map(Vec::into_iter);
        for one in batch {
            let answer = match &mut answers {
                Ok(answers) => answers.next(),
                Err(failure) => Some(Err(failure.clone())),
            };
            if let Some(answer) = answer {
                told.renewed(&one.key, &one.owner, sent, &answer, within / 2);
            }
        }
    });
}

/// Reports the reply once. If the runtime that waits for the reply ends first, reports a failure.
struct TellOnce<T, F: FnOnce(Result<T, Failure>)> {
    tell: Option<F>,
    _reply: PhantomData<fn(T)>,
}

/// Starts a request, and calls `tell` with its reply.
fn tell_reply<T, F>(executor: &Executor, reply: StoreFuture<T>, tell: F)
where
    T: Send + 'static,
    F: FnOnce(Result<T, Failure>) + Send + 'static,
{
    let mut once = TellOnce {
        tell: Some(tell),
        _reply: PhantomData,
    };
    executor.start(async move {
        let reply = reply.await;
        if let Some(tell) = once.tell.take() {
            tell(reply);
        }
    });
}

impl<T, F: FnOnce(Result<T, Failure>)> Drop for TellOnce<T, F> {
    fn drop(&mut self) {
        if let Some(tell) = self.tell.take() {
            tell(Err(Failure::unanswered(ENDED)));
        }
    }
}
