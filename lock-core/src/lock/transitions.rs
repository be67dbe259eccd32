//! The transitions of the state machines: what happens under the mutex.

use std::sync::Arc;

use crate::{
    key::LockKey,
    lock::{
        actions::Todo,
        key_map::{KeyEntry, KeyMap, StateAction, StateTransition},
        key_state::{AcquireAction, Action, Transition},
        registry::Registry,
        requests::{
            acquire_in_flight::AcquireInFlight,
            release_in_flight::{ReleaseInFlight, ReleaseListener},
        },
    },
    mode::{LockMode, Mode},
    runtime::{clock::Moment, jitter::jittered},
    store::owner::Owner,
};

impl Registry {
    /// Makes one transition of a key that has an entry, and carries out its actions. Returns the result, and the request that the
    /// polling task is to poll.
    pub(super) fn event<T>(
        self: &Arc<Self>,
        key: &LockKey,
        kind: LockMode,
        transition: impl FnOnce(&mut KeyEntry, &mut StateTransition<'_>) -> T,
    ) -> Option<(T, Option<Arc<AcquireInFlight>>)> {
        self.event_at(self.context.clock.now(), key, kind, transition)
    }

    /// The same for a caller that has just read the clock.
    pub(super) fn event_at<T>(
        self: &Arc<Self>,
        now: Moment,
        key: &LockKey,
        kind: LockMode,
        transition: impl FnOnce(&mut KeyEntry, &mut StateTransition<'_>) -> T,
    ) -> Option<(T, Option<Arc<AcquireInFlight>>)> {
        let mut keys = self.keys.of(key);
        let (result, todo) = self.step_if_known(&mut keys, key, kind, now, transition)?;
        drop(keys);
        Some((result, self.carry_out(key, kind, todo)))
    }

    /// Makes a transition of a key that has an entry, and removes an entry that is over. Called with the mutex locked.
    pub(super) fn step_if_known<T>(
        &self,
        keys: &mut KeyMap,
        key: &LockKey,
        kind: LockMode,
        now: Moment,
        transition: impl FnOnce(&mut KeyEntry, &mut StateTransition<'_>) -> T,
    ) -> Option<(T, Todo)> {
        let entry = keys.get_mut(key, kind)?;
        let (result, mut todo) = self.step(key, kind, now, entry, transition);
        todo.remove_ended(keys, key, kind);
        Some((result, todo))
    }

    /// Makes a transition of an entry. Called with the mutex locked.
    pub(super) fn step<T>(
        &self,
        key: &LockKey,
        kind: LockMode,
        now: Moment,
        entry: &mut KeyEntry,
        transition: impl FnOnce(&mut KeyEntry, &mut StateTransition<'_>) -> T,
    ) -> (T, Todo) {
        let new_owner = |mode: Mode| {
            let full_key = self.full_key(key);
            let clock = self.context.store.clock_of(&full_key);
            Arc::new(Owner::new(
                &self.context.owner_tokens,
                &self.context.grants,
                key,
                mode,
                full_key,
                clock,
            ))
        };
        let mut cx = Transition {
            now,
            known_fencing: &|owner: &Arc<Owner>| self.context.known_tokens.of(owner.clock),
            limits: self.limits,
            polling_pause: self.context.timing.polling_pause,
            jitter: &jittered,
            new_owner: &new_owner,
            actions: Vec::new(),
        };
        let result = transition(entry, &mut cx);
        (result, self.settle(key, kind, entry, cx.actions))
    }

    /// Sets the timer of the key, and notes which of its requests a task polls. Called with the mutex locked.
    fn settle(
        &self,
        key: &LockKey,
        kind: LockMode,
        entry: &mut KeyEntry,
        actions: Vec<StateAction>,
    ) -> Todo {
        let mut todo = Todo::default();
        for action in &actions {
            match action {
                Action::Arm(at) => {
                    let hint = (key.clone(), kind);
                    let (timer, is_earlier) = self.renewal.timers.insert_quietly(*at, hint);
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
        if entry.is_over() {
            if let Some(timer) = entry.timer.take() {
                self.renewal.timers.remove(timer);
            }
            todo.is_over = true;
        }
        todo.actions = actions;
        todo
    }
}

impl ReleaseListener for Registry {
    fn released(&self, key: &LockKey, kind: LockMode, release: &ReleaseInFlight) {
        let mut keys = self.keys.of(key);
        let Some(entry) = keys.get_mut(key, kind) else {
            return;
        };
        if entry.releasing.take_if(|last| last.is(release)).is_some() {
            let mut todo = self.settle(key, kind, entry, Vec::new());
            todo.remove_ended(&mut keys, key, kind);
            drop(keys);
            drop(todo);
        }
    }
}
