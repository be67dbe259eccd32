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
    /// Rings when the time to wait is over.
    alarm: Option<Sleep>,
    deadline: Option<Moment>,
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
        let alarm = deadline.map(|deadline| arbiter.engine.alarm.sleep_until(deadline));
        let waiting = arbiter.waiting.open();
        Self {
            arbiter,
            key,
            waiter,
            leaving,
            alarm,
            deadline,
            _waiting: waiting,
        }
    }

    fn poll_once(&mut self, context: &mut Context<'_>) -> Poll<Result<Holding, LockError>> {
        if let Some(result) = self.waiter.take_or_register(context.waker()) {
            return Poll::Ready(result);
        }
        if self.leaving != Leaving::Left {
            let backend = &*self.arbiter.engine.backend;
            if self.leaving.poll(backend, context).is_pending() {
                return Poll::Pending;
            }
        }
        self.arbiter.replace_lost_seeker(&self.key);
        let ran_out = self
            .alarm
            .as_mut()
            .is_some_and(|alarm| Pin::new(alarm).poll(context).is_ready());
        if ran_out {
            self.alarm = None;
            if let Some(error) = self.run_out_of_patience() {
                return Poll::Ready(self.leave().unwrap_or(Err(error)));
            }
        }
        Poll::Pending
    }

    /// Another place in the same line, at its end.
    fn again(&self) -> Result<Self, LockError> {
        let mut terms = self.waiter.terms;
        terms.spend(self.deadline, self.arbiter.engine.clock.now());
        self.arbiter.stand(&self.key, terms, self.deadline)
    }

    /// The time to wait is over. Says so if something is known; if a first answer is still on its way, it decides, which
    /// takes no longer than a few commands.
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
        // Bounded: each round costs this task a whole ttl, since it must have slept through a grant.
        loop {
            let holding = match this.poll_once(context) {
                Poll::Ready(Ok(holding)) => holding,
                other => return other,
            };
            holding.lease().claim();
            if holding.lease().ended().is_none() {
                return Poll::Ready(Ok(holding));
            }
            // This task was not polled for so long that the grant is over. What is left of the wait is for another.
            drop(holding);
            match this.again() {
                Ok(place) => *this = place,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        drop(self.leave());
        self.leaving.now(&*self.arbiter.engine.backend);
    }
}
