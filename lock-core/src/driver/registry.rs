//! The registry of all keys that this process holds or waits for, which drives their state machines.
//!
//! Each event goes through `apply`, or through `step` if it is a release. The state machine makes the transition under the
//! mutex of the key. The effects are carried out after the mutex has been unlocked (`effects.rs`). An event that arrives
//! between the two already finds the new state.

use std::{
    sync::{
        Arc, MutexGuard, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::Waker,
    time::Duration,
};

use crate::{
    backend::{Renew, RunResult, Traits, grants::News, owner::Owner},
    driver::{
        acquire_in_flight::AcquireInFlight,
        context::Context,
        effects::{self, Effects},
        key_map::{KeyEntry, KeyMap, Keys, LiveOutcome, StateAction, Timers},
        lease_state::LeaseState,
        release_in_flight::OpenRelease,
        releasing::Releasing,
        ticking::{EventListener, LiveEvent},
    },
    engine::{
        event::{AfterRelease, Event, Outcome},
        reply::{Notice, Renewed},
        request::AcquireReply,
        server_lease::RenewalReply,
        terms::Terms,
        transition::{AcquireAction, Action, Host, Limits, NewLease, Refusal, TaskId, Transition},
    },
    error::{KnownHolder, LeaseLost, LockError},
    failure::Failure,
    key::LockKey,
    mode::{Mode, RequestKind},
    moment::Moment,
    runtime::{
        catch_panic::{SpareWaker, catch_panic},
        jitter::jittered,
        timer_queue::{self, Due},
    },
    telemetry,
};

pub(crate) struct Registry {
    pub(crate) context: Arc<Context>,
    /// The prefix of every key on the server.
    pub(crate) prefix: String,
    /// The number of tasks that wait, over all keys.
    pub(super) waiting: AtomicUsize,
    pub(super) limits: Limits,
    pub(crate) keys: Keys,
    last_task: AtomicU64,
}

/// The outcome of an event for the task that caused it, and the request that this task has to poll.
pub(super) type Applied = (LiveOutcome, Option<Arc<AcquireInFlight>>);

impl Registry {
    pub(crate) fn new(context: Arc<Context>, prefix: String, limits: Limits) -> Arc<Self> {
        let registry = Arc::new(Self {
            context,
            prefix,
            waiting: AtomicUsize::new(0),
            limits,
            keys: Keys::default(),
            last_task: AtomicU64::new(0),
        });
        let weak = Arc::downgrade(&registry);
        registry.context.grants.listen(Box::new(move |news| {
            // After the manager has ended, none of its keys is left.
            if let Some(registry) = weak.upgrade() {
                registry.hear(news);
            }
        }));
        let listener: Weak<dyn EventListener> = Arc::<Self>::downgrade(&registry);
        registry.context.ticking.listen(listener);
        registry
    }

    /// Lets a task acquire the key at once, or start to wait for it, at most until the deadline. Returns the task's id and
    /// the outcome.
    pub(crate) fn wait(
        self: &Arc<Self>,
        key: &LockKey,
        terms: &Terms,
        now: Moment,
        deadline: Option<Moment>,
        waker: &Waker,
    ) -> Result<(TaskId, Applied), LockError> {
        let kind = terms.mode.kind();
        let mut waker = SpareWaker::new(waker);
        let id = TaskId(self.last_task.fetch_add(1, Ordering::Relaxed) + 1);
        let mut keys = self.keys.of(key);
        if kind.is_alone() && keys.of(RequestKind::Shared).contains_key(key) {
            drop(keys);
            // Happens before the request is sent, which then finds the key free if no task uses the share.
            self.event(key, RequestKind::Shared, Event::CloseShares);
            keys = self.keys.of(key);
        }
        // Checked under the same mutex under which the state is created, because a shutdown visits each state only once.
        if keys.is_closed {
            return Err(Refusal::Closed.into_error(key, now, KnownHolder::default()));
        }
        let event = Event::Wait {
            id,
            terms,
            deadline,
            waker: waker.slot(),
        };
        keys.begin(key, kind, &self.context.in_progress);
        match self.apply(keys, key, kind, now, event) {
            Some((Outcome::Refused(refusal), _)) => Err(self.refused(key, refusal)),
            applied => Ok((id, applied.unwrap_or((Outcome::Pending, None)))),
        }
    }

    /// Polls on behalf of a task, which may pass on the reply to the request that it polls. If the key is unknown, the
    /// manager has been shut down.
    pub(crate) fn poll(
        self: &Arc<Self>,
        key: &LockKey,
        kind: RequestKind,
        id: TaskId,
        now: Moment,
        waker: &Waker,
        reply: Option<(&Arc<Owner>, AcquireReply)>,
    ) -> Applied {
        let mut waker = SpareWaker::new(waker);
        let event = Event::Poll {
            id,
            waker: waker.slot(),
            reply,
        };
        let applied = self.apply(self.keys.of(key), key, kind, now, event);
        if matches!(applied, Some((Outcome::Pending, _))) {
            self.context.ensure_ticking();
        }
        applied.unwrap_or((Outcome::Refused(Refusal::Closed), None))
    }

    /// Gives up a guard's share of a lease. The last guard releases the lock, and the returned future waits for the reply;
    /// dropping it leaves the release in flight. Returns `None` if there is nothing to wait for, because the lease stays in
    /// this process.
    ///
    /// Even a lost lease is released, since the server may still have its key. The release also stores the `result` of a
    /// run, whose lease never stays in this process.
    pub(crate) fn release(
        self: &Arc<Self>,
        lease: &LeaseState,
        result: Option<RunResult>,
    ) -> Option<Releasing> {
        if !lease.leave() {
            return None;
        }
        let (key, kind, now) = (&lease.key, lease.kind(), self.context.clock.now());
        let lost = lease.release(now);
        let mut keys = self.keys.of(key);
        if let Some(template) = key.template() {
            keys.note_hold(template, lease.held_for(now));
        }
        let event = Event::Release(lease.id, &lease.owner);
        let stepped = self.step(keys, key, kind, now, event);
        let (outcome, mut effects) = stepped.unwrap_or((Outcome::Pending, Effects::default()));
        let releasing = if let Outcome::Released(AfterRelease::Passed) = outcome {
            lost.map(|reason| Releasing::lost(key, reason))
        } else {
            let new = || OpenRelease::new(&self.context, lease.release_action(), now);
            let open = effects.open_release.take().unwrap_or_else(new);
            let mut releasing = Releasing::begin(open, lost, result);
            // The release must be handed to the connection before the next request for the key.
            if effects.acquires {
                releasing.send();
            }
            Some(releasing)
        };
        effects.carry_out(&self.context, key, kind);
        self.context.held.close_one();
        releasing
    }

    /// Hands a request whose task has left to the executor.
    pub(crate) fn finish_elsewhere(&self, request: &AcquireInFlight) {
        if let Some(reply) = request.take() {
            effects::finish_on_executor(&self.context, request.owner.clone(), reply);
        }
    }

    /// Reports the server's reply to a renewal that a caller sent.
    pub(crate) fn renewed(
        self: &Arc<Self>,
        lease: &LeaseState,
        sent: Moment,
        result: &Result<Renewed, Failure>,
        retry_in: Duration,
    ) {
        let reply = RenewalReply {
            sent,
            tokens: 0,
            result,
            retry_in,
        };
        effects::report_renewed(&self.context, self.clone(), &lease.owner, reply);
    }

    /// Converts a refusal into an error, which names the current holder if it is in this process.
    pub(crate) fn refused(&self, key: &LockKey, refusal: Refusal) -> LockError {
        let now = self.context.clock.now();
        refusal.into_error(key, now, self.keys.busy(key, now))
    }

    /// Returns the key as the server knows it.
    pub(crate) fn full_key(&self, key: &LockKey) -> Arc<str> {
        key.with_prefix(&self.prefix)
    }

    /// Handles news that the backend reports without a request.
    fn hear(self: &Arc<Self>, news: News<'_>) {
        match news {
            News::Notice(owner, notice, now) => {
                let event = match notice {
                    Notice::Granted(granted) => Event::Pushed(owner, granted),
                    Notice::Contended => Event::Contended(owner),
                    Notice::Hint => Event::Reconnected(now),
                };
                self.event(&owner.key, owner.mode.kind(), event);
            }
            News::Connected(since) => self.event_of_all(|| Event::Reconnected(since)),
            News::Disconnected(since) => self.event_of_all(|| Event::Disconnected(since)),
            News::OutOfReach { server, cause } => {
                let (held, first_ends_in) = self.keys.held(self.context.clock.now());
                telemetry::out_of_reach(server, cause, held, first_ends_in);
            }
        }
    }

    /// Applies an event that no task waits for.
    pub(crate) fn event(self: &Arc<Self>, key: &LockKey, kind: RequestKind, event: LiveEvent<'_>) {
        let now = self.context.clock.now();
        self.apply(self.keys.of(key), key, kind, now, event);
    }

    fn event_of_all(self: &Arc<Self>, event: impl Fn() -> LiveEvent<'static>) {
        for (key, kind) in self.keys.all() {
            self.event(&key, kind, event());
        }
    }

    /// Closes all shares of this process, which then admit no further task. Returns `true` if there was one.
    pub(crate) fn close_all_shares(self: &Arc<Self>) -> bool {
        let mut all = self.keys.all();
        all.retain(|(_, kind)| *kind == RequestKind::Shared);
        for (key, kind) in &all {
            self.event(key, *kind, Event::CloseShares);
        }
        !all.is_empty()
    }

    /// Refuses all further tasks, and the waiting ones.
    pub(crate) fn close(self: &Arc<Self>) {
        for mut keys in self.keys.each() {
            keys.is_closed = true;
        }
        self.event_of_all(|| Event::Close);
    }

    /// Ends all leases as lost.
    pub(crate) fn lose_all(self: &Arc<Self>, reason: LeaseLost) {
        self.event_of_all(|| Event::LoseAll(reason));
    }

    /// Applies an event, and carries out its effects. Returns `None` if the key has no state.
    fn apply(
        self: &Arc<Self>,
        keys: MutexGuard<'_, KeyMap>,
        key: &LockKey,
        kind: RequestKind,
        now: Moment,
        event: LiveEvent<'_>,
    ) -> Option<Applied> {
        let (outcome, effects) = self.step(keys, key, kind, now, event)?;
        Some((outcome, effects.carry_out(&self.context, key, kind)))
    }

    /// Applies an event, and removes the entry if it is no longer needed. Unlocks the mutex.
    pub(super) fn step(
        &self,
        mut keys: MutexGuard<'_, KeyMap>,
        key: &LockKey,
        kind: RequestKind,
        now: Moment,
        event: LiveEvent<'_>,
    ) -> Option<(LiveOutcome, Effects)> {
        let (entries, timers) = keys.with_timers(kind);
        let entry = entries.get_mut(key)?;
        match &event {
            Event::Tick => entry.timer = None,
            // The reply to the request has arrived.
            Event::Poll { reply: Some(_), .. } => entry.request = None,
            _ => {}
        }
        let mut cx = Transition {
            now,
            limits: self.limits,
            polling_pause: self.context.timing.polling_pause,
            host: &OfKey {
                context: &self.context,
                prefix: &self.prefix,
                key,
            },
            actions: effects::spare_list(),
        };
        let outcome = entry.state.apply(event, &mut cx);
        // Recorded before the actions, because a request of the same transition must be sent after the release.
        let open_release = match &outcome {
            Outcome::Released(AfterRelease::ReturnToServer(action)) => {
                Some(OpenRelease::new(&self.context, action.clone(), now))
            }
            _ => None,
        };
        if let Some(open) = &open_release {
            entry.releasing = Some(open.0.clone());
        }
        let mut effects = self.settle(entry, timers, cx.actions, open_release, key, kind);
        if entry.is_over() {
            effects.ended = keys.remove(key, kind);
        }
        Some((outcome, effects))
    }

    /// Sets the timer of the key, and records which of its requests a task polls. The mutex must be locked.
    fn settle(
        &self,
        entry: &mut KeyEntry,
        timers: &mut Timers,
        actions: Vec<StateAction>,
        open_release: Option<OpenRelease>,
        key: &LockKey,
        kind: RequestKind,
    ) -> Effects {
        let mut effects = Effects {
            actions,
            open_release,
            ..Effects::default()
        };
        for action in &effects.actions {
            match action {
                Action::Arm(at) => {
                    let timer = timers.insert(*at, (key.clone(), kind));
                    effects.wakes_timers |= self.context.ticking.alarm.is_late_for(*at);
                    if let Some(replaced) = entry.timer.replace(timer) {
                        timers.remove(replaced);
                    }
                }
                Action::Acquire(AcquireAction {
                    owner, polled_by, ..
                }) => {
                    effects.acquires = true;
                    effects.after.clone_from(&entry.releasing);
                    if polled_by.is_some() {
                        let request = Arc::new(AcquireInFlight::new(owner.clone()));
                        entry.request = Some(request.clone());
                        effects.to_poll = Some(request);
                    }
                }
                Action::FinishRequest => effects.to_finish = entry.request.take(),
                Action::Release(_) => effects.releasing = Some(self.context.in_progress.open()),
                _ => {}
            }
        }
        effects
    }
}

/// The services that the state machine of one key gets from the driver.
struct OfKey<'a> {
    context: &'a Arc<Context>,
    prefix: &'a str,
    key: &'a LockKey,
}

impl Host<Waker, Arc<LeaseState>, Arc<Owner>> for OfKey<'_> {
    fn new_owner(&self, mode: Mode) -> Arc<Owner> {
        let full_key = self.key.with_prefix(self.prefix);
        let clock = (self.context.clock_of)(&full_key);
        let grants = &self.context.grants;
        Arc::new(Owner::new(
            self.context.owner_tokens.next(grants.owners.scheme()),
            &grants.owners,
            mode,
            self.key,
            full_key,
            clock,
        ))
    }

    fn new_lease(&self, acquired: NewLease<'_, Arc<Owner>>) -> Arc<LeaseState> {
        Arc::new(LeaseState::new(self.context, self.key, &acquired))
    }

    fn known_fencing(&self, owner: &Arc<Owner>) -> u64 {
        self.context.known_tokens.of(owner.clock)
    }

    fn jitter(&self, span: Duration) -> Duration {
        jittered(span)
    }
}

impl EventListener for Registry {
    fn happened(self: Arc<Self>, key: &LockKey, kind: RequestKind, event: LiveEvent<'_>) {
        self.event(key, kind, event);
    }

    fn released(&self, owner: &Owner) {
        let (key, kind) = (&owner.key, owner.mode.kind());
        let mut keys = self.keys.of(key);
        let Some(entry) = keys.of(kind).get_mut(key) else {
            return;
        };
        match &entry.releasing {
            Some(last) if *last.action.owner == *owner => entry.releasing = None,
            // There is none, or another one has begun in the meantime.
            _ => return,
        }
        let ended = if entry.is_over() {
            keys.remove(key, kind)
        } else {
            None
        };
        drop(keys);
        drop(ended);
    }

    fn due(&self, now: Moment, ahead: Duration) -> Due<(LockKey, RequestKind)> {
        let each = |with: &mut dyn FnMut(&mut Timers)| {
            for mut keys in self.keys.each() {
                with(&mut keys.timers);
            }
        };
        timer_queue::remove_due(each, now, ahead)
    }

    fn renew(self: Arc<Self>, batch: Vec<Renew>, within: Duration) {
        effects::renew(&self.context.clone(), self, batch, within);
    }

    fn traits(&self) -> Traits {
        self.context.backend.traits()
    }

    fn rouse_all(&self) {
        let (wakers, leases) = self.keys.observers();
        for waker in wakers {
            catch_panic(|| waker.wake());
        }
        for lease in leases {
            lease.rouse();
        }
    }
}

impl Drop for Registry {
    /// Wakes the task of the timers, which then ends.
    fn drop(&mut self) {
        self.context.ticking.wake();
    }
}
