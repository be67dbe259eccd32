//! A release of a key, from its first byte to its result.
//!
//! The task that releases polls the release until it knows the result. If the task is dropped, the manager's executor continues
//! with it. No task waits for the release of a dropped acquire, so the executor has it from the start. The store repeats the
//! release until it is certain (`backend/until_certain.rs`).
//!
//! Meanwhile the next acquire of the key in this process is sent after the release. One connection keeps the order of its requests,
//! so that acquire finds the key free. Sometimes it is not known that both use one connection: several servers, no scripts, no
//! connection yet. Then the acquire waits for the reply to the release. The order can still break: a redirect, a broken connection, a
//! script that the server forgot, replicas that must acknowledge. Then the reply is "busy", and the acquire waits for the reply as
//! well and is sent once more.
//!
//! Each acquire waits for one command time-out at most: the task that polls the release may have stopped polling it.
//!
//! Rejected: a state for a release in flight in the state machine of the key. It would decide nothing: an acquire that is sent
//! behind a release is only a request that takes longer.

use std::{
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context as TaskContext, Poll, ready},
};

use crate::{
    backend::{
        Acquire, Acquired, Release, RunResult, StoreFuture, owner::Owner,
        until_certain::CertainRelease,
    },
    driver::context::Context,
    engine::{
        reply::{AcquireOutcome, QueueMode, ReleaseOutcome, WakeUpMode},
        transition::ReleaseAction,
    },
    error::{LeaseLost, LockError},
    failure::Failure,
    key::LockKey,
    moment::Moment,
    runtime::tally::Tally,
    telemetry,
};

/// A release that its task may wait for. Dropping it leaves the release in flight.
///
/// Written by hand, to be small: each of thousands of tasks that wait for a lock keeps room for one.
#[must_use = "futures do nothing unless polled"]
pub(crate) struct Releasing(ReleaseStage);

enum ReleaseStage {
    Pending(PendingRelease),
    Known(Box<Result<(), LockError>>),
    Over,
}

/// The release, until its result is known. It may be polled anywhere.
struct PendingRelease {
    reply: StoreFuture<ReleaseOutcome>,
    lost: Option<LeaseLost>,
    /// Dropped after the request.
    open: OpenRelease,
}

/// A release in flight. The entry of its key keeps it until it has a reply.
pub(crate) struct ReleaseInFlight {
    context: Arc<Context>,
    pub(crate) owner: Arc<Owner>,
    valid_until: Moment,
    /// Whether there was a lease when this began. If not, a request is given up.
    is_of_lease: bool,
    /// Open until the reply.
    reply: Tally,
}

/// A part of the release until its result is known. Its drop tells the registry, and the acquires that wait for the reply.
pub(crate) struct OpenRelease(pub(crate) Arc<ReleaseInFlight>);

impl OpenRelease {
    pub(crate) fn new(context: &Arc<Context>, action: &ReleaseAction<Arc<Owner>>) -> Self {
        Self(Arc::new(ReleaseInFlight {
            context: context.clone(),
            owner: action.owner.clone(),
            valid_until: action.valid_until,
            is_of_lease: context.clock.now() < action.valid_until,
            reply: Tally::of_one(),
        }))
    }

    /// Begins the release, which is sent with the first poll. `result`: what a run leaves.
    pub(crate) fn begin(
        self,
        action: ReleaseAction<Arc<Owner>>,
        started: Moment,
        lost: Option<LeaseLost>,
        result: Option<RunResult>,
    ) -> Releasing {
        let context = &self.0.context;
        let reply = context.store.release(CertainRelease {
            request: Release {
                owner: action.owner,
                keep: None,
                result,
                known_fencing: 0,
                may_be_queued: action.is_queued,
                at_server: None,
            },
            kept_until: action.kept_until,
            started,
            ttl: action.ttl,
            valid_until: action.valid_until,
            known_tokens: context.known_tokens.clone(),
            executor: context.executor.clone(),
            clock: context.clock.clone(),
            command_timeout: context.timing.command_timeout,
            _open: context.in_progress.open(),
        });
        Releasing(ReleaseStage::Pending(PendingRelease {
            reply,
            lost,
            open: self,
        }))
    }
}

impl Releasing {
    /// For a lease that its task lost, and that other tasks still have.
    pub(crate) fn lost(key: &LockKey, reason: LeaseLost) -> Self {
        let lost = LockError::lost(key, reason, None);
        Self(ReleaseStage::Known(Box::new(Err(lost))))
    }

    /// Sends the request now, before any other request.
    pub(crate) fn send(&mut self) {
        let noop = &mut TaskContext::from_waker(std::task::Waker::noop());
        if let Poll::Ready(result) = Pin::new(&mut *self).poll(noop) {
            self.0 = ReleaseStage::Known(Box::new(result));
        }
    }
}

impl Future for Releasing {
    type Output = Result<(), LockError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<Self::Output> {
        if let ReleaseStage::Pending(work) = &mut self.0 {
            let result = ready!(Pin::new(work).poll(context));
            self.0 = ReleaseStage::Over;
            return Poll::Ready(result);
        }
        match mem::replace(&mut self.0, ReleaseStage::Over) {
            ReleaseStage::Known(result) => Poll::Ready(*result),
            ReleaseStage::Pending(_) | ReleaseStage::Over => Poll::Pending,
        }
    }
}

impl Drop for Releasing {
    fn drop(&mut self) {
        let ReleaseStage::Pending(work) = mem::replace(&mut self.0, ReleaseStage::Over) else {
            return;
        };
        let executor = work.open.0.context.executor.clone();
        executor.start_patiently(async move { drop(work.await) });
    }
}

impl Future for PendingRelease {
    type Output = Result<(), LockError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let reply = ready!(self.reply.as_mut().poll(context));
        Poll::Ready(self.open.0.verdict(self.lost, reply))
    }
}

impl ReleaseInFlight {
    /// What the reply means for the task. An earlier loss of the lease stays: no reply can change it.
    fn verdict(
        &self,
        lost: Option<LeaseLost>,
        reply: Result<ReleaseOutcome, Failure>,
    ) -> Result<(), LockError> {
        let (context, key) = (&self.context, &self.owner.key);
        context.outage.note(&reply, &context.clock);
        let reason = match (lost, reply) {
            (Some(reason), _) => {
                return Err(LockError::lost(key, reason, context.outage.failure()));
            }
            (None, Ok(ReleaseOutcome::NotOurs)) if context.clock.now() >= self.valid_until => {
                LeaseLost::Expired
            }
            (None, Ok(ReleaseOutcome::NotOurs)) => LeaseLost::TakenAway,
            (None, Ok(ReleaseOutcome::Released)) => return Ok(()),
            (None, Ok(ReleaseOutcome::NotStored | ReleaseOutcome::ReleasedWithoutResult)) => {
                let full = "the server has no memory left for the result of the run";
                return Err(LockError::unavailable(full).about(key));
            }
            (None, Err(failure)) => return Err(LockError::from(failure).about(key)),
        };
        if self.is_of_lease {
            telemetry::lost_at_release(key, self.owner.mode.kind().shown(), reason);
        }
        Err(LockError::lost(key, reason, context.outage.failure()))
    }

    pub(crate) fn has_reply(&self) -> bool {
        self.reply.count() == 0
    }

    /// Sends an acquire of the same key after the release.
    pub(crate) async fn acquire_after_release(
        self: Arc<Self>,
        mut request: Acquire,
    ) -> Result<Acquired, Failure> {
        let context = &self.context;
        let until = context.clock.now().after(context.timing.command_timeout);
        request.behind = self.owner.released_on.only_connection();
        if request.behind.is_none() {
            self.await_reply(until).await;
        }
        let reply = context.store.acquire(request.clone()).await;
        let Ok(Acquired {
            outcome: AcquireOutcome::Busy(busy),
            ..
        }) = &reply
        else {
            return reply;
        };
        // With an entry in the queue, the release grants the key by a message.
        let is_queued =
            request.queue_mode != QueueMode::DoNotQueue && busy.wake_up == WakeUpMode::Push;
        if is_queued || busy.needs_new_token() || !self.await_reply(until).await {
            return reply;
        }
        request.owner.note_reply(&reply);
        context.store.acquire(request).await
    }

    /// Waits for the reply, and returns whether it came.
    async fn await_reply(&self, until: Moment) -> bool {
        let left = until.since(self.context.clock.now());
        self.context.within(left, self.reply.emptied()).await
    }
}

impl Drop for OpenRelease {
    fn drop(&mut self) {
        let release = &self.0;
        if let Some(listener) = release.context.ticking.listener() {
            listener.released(&release.owner);
        }
        release.reply.close_one();
    }
}
