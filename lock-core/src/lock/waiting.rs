//! The future of a task that waits for a key.

use std::{
    future::Future,
    mem,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, Waker, ready},
};

use crate::{
    error::LockError,
    key::LockKey,
    lock::{
        hold::{Admission, Hold},
        key_state::{Event, Limits, Outcome, Refusal, TaskId, terms::Terms},
        lease_state::LeaseState,
        registry::{Registry, Waiting},
        requests::acquire_in_flight::AcquireInFlight,
    },
    mode::RequestKind,
    runtime::clock::Moment,
    telemetry,
};

/// Waits for the lease, as long as its terms allow.
///
/// # Cancel safety
///
/// Dropping it leaves nothing behind. A lease that was granted meanwhile goes to the next waiter, or is released. A request that
/// is in flight is finished elsewhere: see `acquire_in_flight.rs`.
#[must_use = "a waiter that is not awaited leaves the queue at once"]
pub(crate) struct WaitFuture {
    registry: Arc<Registry>,
    key: LockKey,
    kind: RequestKind,
    id: TaskId,
    /// The lease, if the task had it at once.
    taken: Option<Arc<LeaseState>>,
    /// The request that this task polls, if there is one.
    request: Option<Arc<AcquireInFlight>>,
    watch: telemetry::WatchedWait,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The task joined a moment ago, in the same poll, and left its waker.
    Joined,
    Waiting,
    Over,
}

impl WaitFuture {
    /// Joins the wait queue of the key, until the deadline at most. The task with this waker must poll the future before that task
    /// returns.
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
        let look = || context.store.inspect(registry.full_key(key));
        context
            .outage
            .check(terms.wait, &context.clock, &context.executor, look)
            .map_err(|error| error.about(key))?;
        let (id, request, taken) = match registry.wait(key, &terms, now, deadline, waker)? {
            Waiting::InQueue(id, request) => (id, request, None),
            Waiting::Taken(lease) => (lease.id, None, Some(lease)),
        };
        registry.waiting.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            registry: registry.clone(),
            key: key.clone(),
            kind: terms.mode.kind(),
            id,
            taken,
            request,
            watch: telemetry::WatchedWait::default(),
            stage: Stage::Joined,
        })
    }

    /// Makes telemetry report the wait, from now on.
    pub(crate) fn watched(mut self) -> Self {
        self.watch = telemetry::WatchedWait::begin(
            &self.key,
            self.kind.shown(),
            &self.registry.context.clock,
        );
        self
    }

    fn poll_once(&mut self, context: &mut Context<'_>) -> Poll<Result<Admission, LockError>> {
        if let Some(lease) = self.taken.take() {
            return Poll::Ready(Ok(self.held(lease)));
        }
        // Bounded by the replies of the server: each round but the first polls a new request.
        loop {
            // The task has left its waker, and every later event wakes it.
            let has_joined = mem::replace(&mut self.stage, Stage::Waiting) == Stage::Joined;
            let reply = match &self.request {
                Some(request) => {
                    // A task that has just joined was checked in this poll.
                    if !has_joined {
                        self.now_in_this_process()?;
                    }
                    match request.poll(context) {
                        Poll::Ready(reply) => Some(reply),
                        Poll::Pending => None,
                    }
                }
                None => None,
            };
            if has_joined && reply.is_none() {
                self.registry.context.keep_ticking();
                return Poll::Pending;
            }
            // Read after the reply: a pause before it counts.
            let now = self.now_in_this_process()?;
            let replied = self.request.take_if(|_| reply.is_some());
            let reply = replied.as_deref().zip(reply);
            let (polled, request) =
                self.registry
                    .poll(&self.key, self.kind, self.id, now, context.waker(), reply);
            match polled {
                Outcome::Taken(lease) => return Poll::Ready(Ok(self.held(lease))),
                Outcome::Refused(Refusal::Done(result)) => {
                    return Poll::Ready(Ok(Admission::Done(result)));
                }
                Outcome::Refused(refusal) => {
                    return Poll::Ready(Err(self.registry.refused(&self.key, refusal)));
                }
                _ if request.is_some() => self.request = request,
                _ => return Poll::Pending,
            }
        }
    }

    fn held(&self, lease: Arc<LeaseState>) -> Admission {
        Admission::Held(self.hold(lease))
    }

    fn hold(&self, lease: Arc<LeaseState>) -> Hold {
        Hold::first(&self.registry, lease)
    }

    /// Called before a mutex is taken, which another thread may have held at the moment of a fork.
    fn now_in_this_process(&self) -> Result<Moment, LockError> {
        let now = self.registry.context.now_in_this_process();
        now.map_err(|error| error.about(&self.key))
    }
}

fn check_limits(registry: &Registry, key: &LockKey) -> Result<(), LockError> {
    let Limits { held, waiting, .. } = registry.limits;
    let too_many = if registry.waiting.load(Ordering::Relaxed) >= waiting {
        format!(
            "{waiting} tasks wait for locks already, the most that this manager allows (max_waiting)"
        )
    } else if registry.context.held.count() >= held {
        format!("{held} leases are held already, the most that this manager allows (max_leases)")
    } else {
        return Ok(());
    };
    Err(LockError::unavailable(too_many).about(key))
}

impl Future for WaitFuture {
    type Output = Result<Admission, LockError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let span = this.watch.span();
        let result = ready!(span.in_scope(|| this.poll_once(context)));
        this.stage = Stage::Over;
        Poll::Ready(match result {
            Ok(Admission::Held(hold)) => {
                hold.watch(|lease| this.watch.granted(lease.fencing));
                Ok(Admission::Held(hold))
            }
            Ok(Admission::Done(result)) => {
                this.watch.done();
                Ok(Admission::Done(result))
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
        self.registry.waiting.fetch_sub(1, Ordering::Relaxed);
        // Nothing is left to a future that is over, not even to one that a forked process inherited.
        if self.stage == Stage::Over && self.request.is_none() {
            return;
        }
        if !self.registry.context.is_here() {
            // The spans of telemetry and the request in flight belong to the parent.
            let inherited = (self.request.take(), self.taken.take());
            mem::forget((mem::take(&mut self.watch), inherited));
            return;
        }
        if let Some(lease) = self.taken.take() {
            return drop(self.hold(lease));
        }
        if self.stage != Stage::Over {
            let leave = Event::Leave(self.id);
            self.registry.event(&self.key, self.kind, leave);
        }
        if let Some(request) = self.request.take() {
            self.registry.finish_elsewhere(&self.key, &request);
        }
    }
}
