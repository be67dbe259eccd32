//! The future of a task that waits for a key.

use std::{
    future::Future,
    mem,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context as TaskContext, Poll, Waker, ready},
};

use crate::{
    driver::{
        acquire_in_flight::{AcquireInFlight, read_reply},
        hold::{Admission, Hold},
        lease_state::LeaseState,
        registry::Registry,
    },
    engine::{
        event::{Event, Outcome},
        terms::Terms,
        transition::{Limits, Refusal, TaskId},
    },
    error::LockError,
    key::LockKey,
    mode::RequestKind,
    moment::Moment,
    telemetry::WatchedWait,
};

/// Waits for the lease, for as long as its terms allow.
///
/// # Cancel safety
///
/// Dropping the future leaves nothing behind. A lease that was granted in the meantime goes to the next waiter, or is
/// released. The executor takes over a request that is in flight: see `acquire_in_flight.rs`.
#[must_use = "a waiter that is not awaited leaves the queue at once"]
pub(crate) struct WaitFuture {
    registry: Arc<Registry>,
    key: LockKey,
    kind: RequestKind,
    id: TaskId,
    /// The request that this task polls, if there is one.
    request: Option<Arc<AcquireInFlight>>,
    watch: Option<Box<WatchedWait>>,
    stage: Stage,
}

enum Stage {
    /// The task acquired the lease when it joined.
    Acquired(Arc<LeaseState>),
    /// The task has joined the queue in the current poll, and its waker is registered.
    Joined,
    Waiting,
    Over,
}

impl WaitFuture {
    /// Joins the wait queue of the key, at most until the deadline. The task with this waker must poll the future in the
    /// same poll.
    pub(crate) fn join(
        registry: &Arc<Registry>,
        key: &LockKey,
        terms: Terms,
        now: Moment,
        deadline: Option<Moment>,
        waker: &Waker,
    ) -> Result<Self, LockError> {
        check_limits(registry, key)?;
        let context = &registry.context;
        let look = || context.backend.inspect(registry.full_key(key));
        context
            .outage
            .check(terms.wait, &context.clock, &context.executor, look)
            .map_err(|error| error.about(key))?;
        let (id, (outcome, request)) = registry.wait(key, &terms, now, deadline, waker)?;
        let stage = match outcome {
            Outcome::Acquired(lease) => Stage::Acquired(lease),
            _ => Stage::Joined,
        };
        registry.waiting.fetch_add(1, Ordering::Relaxed);
        let mut wait = Self {
            registry: registry.clone(),
            key: key.clone(),
            kind: terms.mode.kind(),
            id,
            request,
            watch: None,
            stage,
        };
        // Created after `wait`: if a subscriber panics here, the drop of `wait` leaves the queue.
        wait.watch = WatchedWait::begin(key, wait.kind.shown(), &context.clock);
        Ok(wait)
    }

    fn poll_once(&mut self, task: &mut TaskContext<'_>) -> Poll<Result<Admission, LockError>> {
        let registry = &self.registry;
        let context = &registry.context;
        let mut polled_at = match mem::replace(&mut self.stage, Stage::Waiting) {
            Stage::Acquired(lease) => return Poll::Ready(Ok(self.hold(lease))),
            Stage::Joined => None,
            Stage::Waiting | Stage::Over => Some(context.clock.now()),
        };
        // Bounded by the number of replies, because each iteration but the first polls a new request.
        loop {
            let mut reply = None;
            if let Some(request) = &self.request
                && let Poll::Ready(result) = request.poll(task)
            {
                let owner = &request.owner;
                reply = Some((owner, read_reply(context, owner, result)));
            }
            let now = match (polled_at, &reply) {
                // The waker has been registered in this poll, and every later event wakes it.
                (None, None) => {
                    context.ensure_ticking();
                    return Poll::Pending;
                }
                (Some(now), None) => now,
                // Read after the reply, because a pause of the process before that must count.
                (_, Some(_)) => context.clock.now(),
            };
            let has_reply = reply.is_some();
            let (polled, next) =
                registry.poll(&self.key, self.kind, self.id, now, task.waker(), reply);
            if has_reply {
                self.request = None;
            }
            match polled {
                Outcome::Acquired(lease) => return Poll::Ready(Ok(self.hold(lease))),
                Outcome::Refused(Refusal::Done(result)) => {
                    return Poll::Ready(Ok(Admission::Done(result)));
                }
                Outcome::Refused(refusal) => {
                    return Poll::Ready(Err(registry.refused(&self.key, refusal)));
                }
                _ if next.is_some() => self.request = next,
                _ => return Poll::Pending,
            }
            polled_at = Some(now);
        }
    }

    fn hold(&self, lease: Arc<LeaseState>) -> Admission {
        // The task that renews the lease may have ended with an earlier runtime.
        self.registry.context.ensure_ticking();
        Admission::Held(Hold::first(&self.registry, lease))
    }
}

fn check_limits(registry: &Registry, key: &LockKey) -> Result<(), LockError> {
    let Limits { held, waiting, .. } = registry.limits;
    let too_many = if registry.waiting.load(Ordering::Relaxed) >= waiting {
        format!(
            "{waiting} tasks already wait for locks, which is the most that this manager allows (max_waiting)"
        )
    } else if registry.context.held.count() >= held {
        format!(
            "{held} leases are already held, which is the most that this manager allows (max_leases)"
        )
    } else {
        return Ok(());
    };
    Err(LockError::unavailable(too_many).about(key))
}

impl Future for WaitFuture {
    type Output = Result<Admission, LockError>;

    fn poll(mut self: Pin<&mut Self>, task: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let result = match &this.watch {
            None => ready!(this.poll_once(task)),
            Some(watch) => {
                let span = watch.span();
                ready!(span.in_scope(|| this.poll_once(task)))
            }
        };
        this.stage = Stage::Over;
        if let Some(watch) = this.watch.take() {
            match &result {
                Ok(Admission::Held(hold)) => hold.watch(*watch),
                Ok(Admission::Done(_)) => watch.done(),
                Err(error) => watch.failed(error),
            }
        }
        Poll::Ready(result)
    }
}

impl Drop for WaitFuture {
    fn drop(&mut self) {
        self.registry.waiting.fetch_sub(1, Ordering::Relaxed);
        let stage = mem::replace(&mut self.stage, Stage::Over);
        if matches!(stage, Stage::Over) && self.request.is_none() {
            return;
        }
        match stage {
            Stage::Acquired(lease) => drop(self.hold(lease)),
            Stage::Joined | Stage::Waiting => {
                let leave = Event::Leave(self.id);
                self.registry.event(&self.key, self.kind, leave);
            }
            Stage::Over => {}
        }
        if let Some(request) = &self.request {
            self.registry.finish_elsewhere(request);
        }
    }
}
