//! The place of one task in a key's line, and the future that waits there.

use std::{
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use crate::{
    error::LockError,
    key::LockKey,
    lock::{
        held::holding::Holding,
        pending_flush::PendingFlush,
        registry::Registry,
        wait_queue::{LeftBehind, Waiter},
    },
    runtime::{clock::Moment, tally::Open, timer::Sleep},
    telemetry,
};

/// Waits for the lease, as long as its terms allow.
///
/// # Cancel safety
///
/// Dropping it leaves nothing behind. If the lease was granted meanwhile, it goes to the next in line or is released.
#[must_use = "a place that is not awaited is given up at once"]
pub(crate) struct WaitFuture {
    registry: Arc<Registry>,
    key: LockKey,
    waiter: Arc<Waiter>,
    /// Of the first question, for the task that asked it.
    flush: PendingFlush,
    /// Rings when the time to wait is over.
    timer: Option<Sleep>,
    deadline: Option<Moment>,
    watch: telemetry::WatchedWait,
    stage: Stage,
    _waiting: Open,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It was taken a moment ago, in this process.
    New,
    Waiting,
    /// The lease was handed to the task.
    Over,
}

impl WaitFuture {
    pub(crate) fn new(
        registry: Arc<Registry>,
        key: LockKey,
        waiter: Arc<Waiter>,
        flush: PendingFlush,
        deadline: Option<Moment>,
    ) -> Self {
        let timer = deadline.map(|deadline| registry.context.timer.sleep_until(deadline));
        let waiting = registry.waiting.open();
        Self {
            registry,
            key,
            waiter,
            flush,
            timer,
            deadline,
            watch: telemetry::WatchedWait::default(),
            stage: Stage::New,
            _waiting: waiting,
        }
    }

    /// Tells those who listen of the wait, from now on.
    pub(crate) fn watched(mut self) -> Self {
        self.watch = telemetry::WatchedWait::begin(&self.key, &self.registry.context.clock);
        self
    }

    fn poll_once(&mut self, context: &mut Context<'_>) -> Poll<Result<Holding, LockError>> {
        if let Some(result) = self.waiter.take_or_register(context.waker()) {
            return Poll::Ready(result);
        }
        // Not at the first poll: the others that find no answer are few.
        if mem::replace(&mut self.stage, Stage::Waiting) == Stage::Waiting {
            self.check_process()?;
        }
        if self.flush != PendingFlush::Flushed {
            let store = &*self.registry.context.store;
            if self.flush.poll(store, context).is_pending() {
                return Poll::Pending;
            }
        }
        self.registry.restart_lost_loop(&self.key);
        let ran_out = self
            .timer
            .as_mut()
            .is_some_and(|timer| Pin::new(timer).poll(context).is_ready());
        if ran_out {
            self.timer = None;
            if let Some(error) = self.refuse_at_deadline() {
                return Poll::Ready(self.leave().unwrap_or(Err(error)));
            }
        }
        Poll::Pending
    }

    fn poll_until_answered(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Holding, LockError>> {
        // Bounded: each round costs this task a whole ttl, since it must have slept through a grant.
        loop {
            let holding = match self.poll_once(context) {
                Poll::Ready(Ok(holding)) => holding,
                other => return other,
            };
            holding.lease().claim();
            if holding.lease().ended().is_none() {
                return Poll::Ready(Ok(holding));
            }
            // This task was not polled for so long that the grant is over, or is in a child that was forked meanwhile. What is
            // left of the wait is for another.
            drop(holding);
            if let Err(error) = self.again() {
                return Poll::Ready(Err(error));
            }
        }
    }

    /// Goes on at another place in the same line, at its end.
    fn again(&mut self) -> Result<(), LockError> {
        self.check_process()?;
        let mut terms = self.waiter.terms;
        terms.spend(self.deadline, self.registry.context.clock.now());
        let wait = self
            .registry
            .rejoin_queue(&self.key, terms, self.deadline)?;
        let watch = mem::take(&mut self.watch);
        *self = wait;
        self.watch = watch;
        Ok(())
    }

    fn check_process(&self) -> Result<(), LockError> {
        let checked = self.registry.context.check_process();
        checked.map_err(|error| error.about(&self.key))
    }

    /// The time to wait is over. Says so if something is known; if a first answer is still on its way, it decides, which
    /// takes no longer than a few commands.
    fn refuse_at_deadline(&self) -> Option<LockError> {
        self.waiter.pass_deadline();
        self.registry.known_error(&self.key, self.waiter.terms.ttl)
    }

    /// Leaves the line, once; returns an answer that came and was not taken.
    fn leave(&self) -> Option<Result<Holding, LockError>> {
        match self.waiter.go() {
            LeftBehind::Nothing => None,
            LeftBehind::UntakenOutcome(result) => Some(result),
            LeftBehind::QueueEntry => {
                self.registry.note_gone(&self.key);
                None
            }
        }
    }
}

impl Future for WaitFuture {
    type Output = Result<Holding, LockError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let span = this.watch.span();
        let result = ready!(span.in_scope(|| this.poll_until_answered(context)));
        Poll::Ready(match result {
            Ok(mut holding) => {
                this.stage = Stage::Over;
                holding.watch(this.watch.granted(holding.lease().fencing));
                Ok(holding)
            }
            Err(error) => {
                this.watch.failed(&error);
                Err(error)
            }
        })
    }
}

impl Drop for WaitFuture {
    fn drop(&mut self) {
        if self.stage != Stage::Over {
            if !self.registry.context.is_here() {
                // It is the parent's, and so is what wakes it.
                mem::forget((self.timer.take(), mem::take(&mut self.watch)));
                return;
            }
            drop(self.leave());
        }
        self.flush.flush_now(&*self.registry.context.store);
    }
}
