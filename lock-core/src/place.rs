//! The place of one task in a key's line, and the future that waits there.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use crate::{
    alarm::Sleep,
    arbiter::Arbiter,
    clock::Moment,
    engine::Open,
    error::LockError,
    holding::Holding,
    key::LockKey,
    leaving::Leaving,
    line::{Departure, Waiter},
};

/// Waits for the lease, as long as its terms allow.
///
/// # Cancel safety
///
/// Dropping it leaves nothing behind. If the lease was granted meanwhile, it goes to the next in line or is released.
#[must_use = "a place that is not awaited is given up at once"]
pub(crate) struct Place {
    arbiter: Arc<Arbiter>,
    key: LockKey,
    waiter: Arc<Waiter>,
    /// Of the first question, for the task that asked it.
    leaving: Leaving,
    deadline: Option<Sleep>,
    _waiting: Open,
}

impl Place {
    pub(crate) fn new(
        arbiter: Arc<Arbiter>,
        key: LockKey,
        waiter: Arc<Waiter>,
        leaving: Leaving,
        deadline: Option<Moment>,
    ) -> Self {
        let deadline = deadline.map(|deadline| arbiter.engine.alarm.sleep_until(deadline));
        let waiting = arbiter.waiting.open();
        Self {
            arbiter,
            key,
            waiter,
            leaving,
            deadline,
            _waiting: waiting,
        }
    }

    /// The time to wait is over. Says so if something is known; if a first answer is still on its way, it decides, which
    /// takes no longer than one command.
    fn run_out_of_patience(&self) -> Option<LockError> {
        self.waiter.lose_patience();
        self.arbiter.verdict(&self.key, self.waiter.terms.ttl)
    }

    /// Leaves the line, once; returns an answer that came and was not taken.
    fn leave(&self) -> Option<Result<Holding, LockError>> {
        match self.waiter.go() {
            Departure::Before => None,
            Departure::Untaken(result) => Some(result),
            Departure::InLine => {
                self.arbiter.note_gone(&self.key);
                None
            }
        }
    }
}

impl Future for Place {
    type Output = Result<Holding, LockError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Some(result) = this.waiter.take_or_register(context.waker()) {
            return Poll::Ready(result);
        }
        if this.leaving != Leaving::Left {
            let backend = &*this.arbiter.engine.backend;
            if this.leaving.poll(backend, context).is_pending() {
                return Poll::Pending;
            }
        }
        this.arbiter.replace_lost_seeker(&this.key);
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
        drop(self.leave());
        self.leaving.now(&*self.arbiter.engine.backend);
    }
}
