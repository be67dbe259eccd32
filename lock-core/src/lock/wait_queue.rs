//! The local queue of one key, and the place of one task in it.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Waker,
};

use crate::{
    error::LockError,
    lock::held::holding::Holding,
    options::{Terms, Wait},
    runtime::catch_panic::catch_panic,
};

/// One task that stands in line.
pub(crate) struct Waiter {
    pub(crate) terms: Terms,
    state: Mutex<WaiterState>,
}

struct WaiterState {
    outcome: Outcome,
    /// Whether the next word from the backend ends the wait: the time is over, or there was none.
    deadline: Deadline,
}

enum Outcome {
    Pending(Option<Waker>),
    Settled(Result<Holding, LockError>),
    /// The task took its answer, or went away.
    Gone,
}

/// What a task that goes away leaves.
pub(crate) enum LeftBehind {
    /// Its place in line.
    QueueEntry,
    /// An answer that it did not take.
    UntakenOutcome(Result<Holding, LockError>),
    /// Nothing: it has had its answer.
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deadline {
    InFuture,
    Passed,
}

impl Waiter {
    pub(crate) fn new(terms: Terms) -> Self {
        let deadline = match terms.wait {
            Wait::No => Deadline::Passed,
            Wait::For(_) | Wait::Forever => Deadline::InFuture,
        };
        Self {
            terms,
            state: Mutex::new(WaiterState {
                outcome: Outcome::Pending(None),
                deadline,
            }),
        }
    }

    /// Takes the answer, or leaves the waker for it.
    pub(crate) fn take_or_register(&self, waker: &Waker) -> Option<Result<Holding, LockError>> {
        // A waker is the user's code: it is cloned before the lock is taken, and dropped after.
        let fresh = waker.clone();
        let mut state = self.lock();
        match std::mem::replace(&mut state.outcome, Outcome::Gone) {
            Outcome::Settled(result) => Some(result),
            Outcome::Pending(replaced) => {
                state.outcome = Outcome::Pending(Some(fresh));
                drop(state);
                drop(replaced);
                None
            }
            Outcome::Gone => None,
        }
    }

    /// Hands over the answer; gives it back if the task went away.
    pub(crate) fn settle(
        &self,
        result: Result<Holding, LockError>,
    ) -> Result<(), Result<Holding, LockError>> {
        let waker = {
            let mut state = self.lock();
            let Outcome::Pending(waker) = &mut state.outcome else {
                return Err(result);
            };
            let waker = waker.take();
            state.outcome = Outcome::Settled(result);
            waker
        };
        rouse(waker);
        Ok(())
    }

    /// Takes a lease back that the task was given and has not taken. It waits again, if it is put into the line.
    pub(crate) fn withdraw(&self) -> Option<Holding> {
        let mut state = self.lock();
        match std::mem::replace(&mut state.outcome, Outcome::Gone) {
            Outcome::Settled(Ok(holding)) => {
                // Its waker was used, so it will look by itself whenever it is polled.
                state.outcome = Outcome::Pending(None);
                Some(holding)
            }
            other => {
                state.outcome = other;
                None
            }
        }
    }

    /// Has the task look again, without an answer.
    pub(crate) fn wake(&self) {
        let waker = match &mut self.lock().outcome {
            Outcome::Pending(waker) => waker.take(),
            Outcome::Settled(_) | Outcome::Gone => None,
        };
        rouse(waker);
    }

    /// The task goes away.
    pub(crate) fn go(&self) -> LeftBehind {
        let outcome = std::mem::replace(&mut self.lock().outcome, Outcome::Gone);
        match outcome {
            Outcome::Settled(result) => LeftBehind::UntakenOutcome(result),
            Outcome::Pending(_) => LeftBehind::QueueEntry,
            Outcome::Gone => LeftBehind::Nothing,
        }
    }

    /// The next word from the backend shall end the wait.
    pub(crate) fn pass_deadline(&self) {
        self.lock().deadline = Deadline::Passed;
    }

    pub(crate) fn is_past_deadline(&self) -> bool {
        self.lock().deadline == Deadline::Passed
    }

    fn is_waiting(&self) -> bool {
        matches!(self.lock().outcome, Outcome::Pending(_))
    }

    fn lock(&self) -> MutexGuard<'_, WaiterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn rouse(waker: Option<Waker>) {
    if let Some(waker) = waker {
        catch_panic(|| waker.wake());
    }
}

/// The tasks that want one key, first come, first served.
///
/// A task that goes away leaves its entry behind, which is skipped. They are swept once they outnumber the tasks that
/// wait, so the line is never longer than twice the number of tasks, and leaving costs the same in any place.
#[derive(Default)]
pub(crate) struct WaitQueue {
    entries: VecDeque<Arc<Waiter>>,
    gone: usize,
}

impl WaitQueue {
    pub(crate) fn push(&mut self, waiter: Arc<Waiter>) {
        self.entries.push_back(waiter);
    }

    /// The task that is next.
    pub(crate) fn head(&mut self) -> Option<Arc<Waiter>> {
        while let Some(waiter) = self.entries.front() {
            if waiter.is_waiting() {
                return Some(waiter.clone());
            }
            self.entries.pop_front();
            self.gone = self.gone.saturating_sub(1);
        }
        None
    }

    pub(crate) fn pop(&mut self) -> Option<Arc<Waiter>> {
        let head = self.head();
        self.entries.pop_front();
        head
    }

    /// Notes that a task in the line went away.
    pub(crate) fn note_gone(&mut self) {
        self.gone += 1;
        if self.gone * 2 > self.entries.len() {
            self.entries.retain(|waiter| waiter.is_waiting());
            self.gone = 0;
        }
    }

    /// Takes out some of those who wait.
    pub(crate) fn take_those(&mut self, which: impl Fn(&Waiter) -> bool) -> Vec<Arc<Waiter>> {
        if !self.entries.iter().any(|waiter| which(waiter)) {
            return Vec::new();
        }
        let (taken, rest): (_, VecDeque<_>) =
            self.entries.drain(..).partition(|waiter| which(waiter));
        self.entries = rest;
        Vec::from(taken)
    }

    /// Takes out everybody.
    pub(crate) fn take_all(&mut self) -> Vec<Arc<Waiter>> {
        self.gone = 0;
        self.entries.drain(..).collect()
    }

    /// How many entries there are, of tasks that went away too.
    pub(crate) fn length(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn waiting(&self) -> impl Iterator<Item = &Arc<Waiter>> {
        self.entries.iter().filter(|waiter| waiter.is_waiting())
    }
}
