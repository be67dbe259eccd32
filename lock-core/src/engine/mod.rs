//! One key inside this process, as a state machine without I/O.
//!
//! One [`KeyState`] has all that the process knows of a key: the wait queue, the request to the server, the server leases, and
//! their holders. As long as one task takes a key that is free, the state has a short form (`short_form.rs`). An event and the time go in.
//! The new state and a list of [`Action`]s come out, which `driver/effects.rs` carries out after the registry's mutex is free. No waker,
//! listener or destructor of the user runs in here.
//!
//! There is one state for each kind of mode in which tasks of this process take the key. The server decides between these states,
//! as it does between processes: each state sends its own requests. Each has at most one acquire request, for the first waiter, and
//! server leases:
//!
//! - exclusive: one lease at most, and no request beside it. The lease is passed from task to task.
//! - shared: a lease is a share, which any number of tasks have. While a share is open, nothing is asked. A closed share may stay
//!   for its tasks, beside a request for the next share. See `share.rs`.
//! - permits: each task has a lease of its own. The request of the first waiter may be in flight beside them.
//! - once: as exclusive. But the lease goes back to the server, which alone knows whether there is a result. A result is for all
//!   waiters.
//!
//! ```text
//!              first waiter                 granted
//!   nothing ───────────────────▶ a request ───────────▶ a lease ──┐ passed to the next waiter
//!     ▲                            │ no waiter is left     │ ◀────┘
//!     └────────────────────────────┴──────────────────────┘ released or lost
//! ```
//!
//! A state without a request, a lease, a waiter or a refusal that its task has not read carries nothing, and the registry removes it.
//!
//! Every deadline is part of the state: [`KeyState::due`] is the earliest. The timer queue holds hints (time, key). A hint that
//! fires is the event [`Event::Tick`]. It only changes what is due, so a late, stale or repeated hint does no harm.
//!
//! The explorer in `model/` replaces the generic types. `W` is the waker, `L` is what observers of a lease see, and `O` is an owner
//! token with its bookkeeping.

use std::mem;

use crate::{
    engine::{
        event::{AfterRelease, Event, Outcome},
        full_state::FullState,
        short_form::{Alone, Taken},
        transition::{Action, Transition},
    },
    mode::RequestKind,
    moment::Moment,
};

mod acquiring;
mod batch;
pub(crate) mod event;
mod few;
mod full_state;
mod granting;
mod holding;
mod local_holders;
#[cfg(all(test, feature = "redis"))]
mod model;
pub(crate) mod reply;
pub(crate) mod request;
pub(crate) mod server_lease;
mod share;
mod sharing;
mod short_form;
pub(crate) mod terms;
pub(crate) mod transition;
mod wait_queue;

/// What this process knows of a key.
#[derive(Clone, Debug)]
pub(crate) struct KeyState<W, L, O> {
    kind: RequestKind,
    form: Form<W, L, O>,
    /// The earliest timer hint that was given out and has not fired.
    armed: Option<Moment>,
}

#[derive(Clone, Debug)]
enum Form<W, L, O> {
    Nothing,
    Alone(Alone<W, L, O>),
    Full(Box<FullState<W, L, O>>),
}

impl<W, L, O> KeyState<W, L, O>
where
    L: Clone,
    O: Clone + PartialEq,
{
    pub(crate) fn new(kind: RequestKind) -> Self {
        Self {
            kind,
            form: Form::Nothing,
            armed: None,
        }
    }

    /// Makes the transition of an event. What comes due by it is done, and the timer is set.
    pub(crate) fn apply(
        &mut self,
        mut event: Event<'_, W, O>,
        cx: &mut Transition<'_, W, L, O>,
    ) -> Outcome<L, O> {
        if matches!(event, Event::Tick) {
            self.armed = None;
        }
        let outcome = match self.apply_alone(&mut event, cx) {
            Some(outcome) => outcome,
            None => self.full(cx).apply(event, cx),
        };
        if let Form::Full(full) = &self.form
            && full.is_new()
        {
            self.form = Form::Nothing;
        }
        if let Some(due) = self.due()
            && self.armed.is_none_or(|armed| due < armed)
        {
            self.armed = Some(due);
            cx.actions.push(Action::Arm(due));
        }
        outcome
    }

    /// Applies an event of a key that one task takes alone. `None`: it needs the full state.
    fn apply_alone(
        &mut self,
        event: &mut Event<'_, W, O>,
        cx: &mut Transition<'_, W, L, O>,
    ) -> Option<Outcome<L, O>> {
        match (&mut self.form, event) {
            (
                Form::Nothing,
                Event::Wait {
                    id,
                    terms,
                    deadline,
                    waker,
                },
            ) if self.kind == RequestKind::Exclusive => {
                self.form = Form::Alone(Alone::wait(*id, terms, *deadline, waker, cx));
                Some(Outcome::Pending)
            }
            (Form::Alone(alone), Event::Poll { id, waker, reply }) if *id == alone.id => {
                let Some((owner, reply)) = reply else {
                    return alone.keep_waiting(waker).then_some(Outcome::Pending);
                };
                let lease = alone.take(owner, reply, cx)?;
                Some(Outcome::Taken(lease))
            }
            (Form::Alone(alone), Event::Renewed(owner, reply)) => {
                alone.renewed(owner, reply, cx).then_some(Outcome::Pending)
            }
            (Form::Alone(alone), Event::Tick) => alone.renew(cx).then_some(Outcome::Pending),
            (Form::Alone(alone), Event::Reconnected(since) | Event::Disconnected(since)) => {
                alone.reconnected(*since, cx).then_some(Outcome::Pending)
            }
            (Form::Alone(alone), Event::Release(id, _)) if *id == alone.id => {
                let release = alone.release(cx.now)?;
                self.form = Form::Nothing;
                Some(Outcome::Released(AfterRelease::GiveBack(release)))
            }
            _ => None,
        }
    }

    /// Makes the full state, unless this is the full state.
    fn full(&mut self, cx: &Transition<'_, W, L, O>) -> &mut FullState<W, L, O> {
        if !matches!(self.form, Form::Full(_)) {
            let full = match mem::replace(&mut self.form, Form::Nothing) {
                Form::Alone(alone) => alone.into_full(cx),
                Form::Nothing | Form::Full(_) => FullState::new(self.kind),
            };
            self.form = Form::Full(Box::new(full));
        }
        match &mut self.form {
            Form::Full(full) => full,
            Form::Nothing | Form::Alone(_) => unreachable!("the full state was made above"),
        }
    }

    /// Whether the registry can remove it.
    pub(crate) fn is_over(&self) -> bool {
        match &self.form {
            Form::Nothing => true,
            Form::Alone(_) => false,
            Form::Full(full) => full.is_over(),
        }
    }

    /// When something is due next.
    fn due(&self) -> Option<Moment> {
        match &self.form {
            Form::Nothing => None,
            Form::Alone(alone) => Some(alone.due()),
            Form::Full(full) => full.due(),
        }
    }

    #[cfg(all(test, feature = "redis"))]
    fn is_full(&self) -> bool {
        matches!(self.form, Form::Full(_))
    }

    /// The full state, made from a copy.
    #[cfg(test)]
    fn to_full(&self, cx: &Transition<'_, W, L, O>) -> FullState<W, L, O>
    where
        W: Clone,
    {
        match &self.form {
            Form::Full(full) => (**full).clone(),
            Form::Nothing | Form::Alone(_) => self.clone().full(cx).clone(),
        }
    }

    fn as_full(&self) -> Option<&FullState<W, L, O>> {
        match &self.form {
            Form::Full(full) => Some(full),
            Form::Nothing | Form::Alone(_) => None,
        }
    }

    fn as_alone(&self) -> Option<&Alone<W, L, O>> {
        match &self.form {
            Form::Alone(alone) => Some(alone),
            Form::Nothing | Form::Full(_) => None,
        }
    }

    /// What its one task has, if it is the only one.
    fn held_alone(&self) -> Option<&Taken<L>> {
        self.as_alone()?.held()
    }

    /// When each lease that tasks hold ends, unless it is renewed.
    pub(crate) fn ends(&self) -> impl Iterator<Item = Moment> {
        let of_full = self.as_full().into_iter().flat_map(FullState::ends);
        let alone = self.held_alone().map(|held| held.valid_until);
        of_full.chain(alone)
    }

    #[cfg(feature = "testing")]
    pub(crate) fn is_held(&self) -> bool {
        self.ends().next().is_some()
    }

    pub(crate) fn waiters(&self) -> usize {
        let waits_alone = self.as_alone().is_some_and(|alone| alone.held().is_none());
        let in_queue = self.as_full().map_or(0, |full| full.queue.length());
        in_queue + usize::from(waits_alone)
    }

    /// The leases of the tasks that hold the lock.
    pub(crate) fn leases(&self) -> impl Iterator<Item = &L> {
        let of_full = self.as_full().into_iter().flat_map(FullState::each_lease);
        of_full.chain(self.held_alone().map(|held| &held.lease))
    }

    /// Takes the wakers of all waiters, which are to poll.
    pub(crate) fn take_wakers(&mut self) -> Vec<W> {
        match &mut self.form {
            Form::Nothing => Vec::new(),
            Form::Alone(alone) => alone.take_waker().into_iter().collect(),
            Form::Full(full) => full.queue.take_wakers(),
        }
    }
}
