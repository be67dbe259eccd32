//! Releases a key. The task that releases polls the release until it knows the result. If the task is dropped, the manager's executor
//! goes on with it. The store repeats the release until it is certain (`store/until_certain.rs`).

use std::{
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context as TaskContext, Poll, ready},
};

use crate::{
    error::{LeaseLost, LockError},
    key::LockKey,
    lock::{
        context::{Context, forked},
        key_state::ReleaseAction,
        requests::release_in_flight::OpenRelease,
    },
    runtime::clock::Moment,
    store::{
        CertainRelease, Failure, Release, ReleaseOutcome, RunResult, StoreFuture, owner::Owner,
    },
};

/// A release that its task may wait for. Dropping it leaves the release in flight.
///
/// Written by hand, to be small: each of thousands of tasks that wait for a lock keeps room for one.
#[must_use = "futures do nothing unless polled"]
pub(crate) struct Releasing(ReleaseStage);

enum ReleaseStage {
    Pending(Box<PendingRelease>),
    Known(Box<Result<(), LockError>>),
    Over,
}

/// The release, until its result is known. It may be polled anywhere.
struct PendingRelease {
    context: Arc<Context>,
    key: LockKey,
    reply: StoreFuture<ReleaseOutcome>,
    /// Makes the next acquire of the key take account of the release.
    open: Option<OpenRelease>,
    valid_until: Moment,
    lost: Option<LeaseLost>,
    /// The first poll is part of the call that began the release, and checked the process.
    is_polled: bool,
}

/// Begins a release, which is sent with the first poll. `result`: what a run leaves.
pub(crate) fn release(
    context: &Arc<Context>,
    action: ReleaseAction<Arc<Owner>>,
    started: Moment,
    lost: Option<LeaseLost>,
    open: Option<OpenRelease>,
    result: Option<RunResult>,
) -> Releasing {
    let (key, valid_until) = (action.owner.key.clone(), action.valid_until);
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
        valid_until,
        known_tokens: context.known_tokens.clone(),
        executor: context.executor.clone(),
        clock: context.clock.clone(),
        command_timeout: context.timing.command_timeout,
        _open: context.in_progress.open(),
        in_background: context.in_background.clone(),
    });
    Releasing(ReleaseStage::Pending(Box::new(PendingRelease {
        context: context.clone(),
        key,
        reply,
        open,
        valid_until,
        lost,
        is_polled: false,
    })))
}

impl Releasing {
    /// For a lease that this process inherited by a fork.
    pub(crate) fn forked(key: &LockKey) -> Self {
        Self(ReleaseStage::Known(Box::new(Err(forked().about(key)))))
    }

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
            let is_first = !mem::replace(&mut work.is_polled, true);
            if !is_first && !work.context.is_here() {
                // In a child that was forked after the first poll the reply never comes.
                return Poll::Ready(Err(forked().about(&work.key)));
            }
            let result = ready!(Pin::new(&mut **work).poll(context));
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
        if !work.context.is_here() {
            // A release in flight belongs to the parent.
            return mem::forget(work);
        }
        let context = work.context.clone();
        context
            .executor
            .start_patiently(async move { drop(work.await) });
    }
}

impl Future for PendingRelease {
    type Output = Result<(), LockError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let reply = ready!(self.reply.as_mut().poll(context));
        self.context.outage.note(&reply, &self.context.clock);
        drop(self.open.take());
        Poll::Ready(self.verdict(reply))
    }
}

impl PendingRelease {
    /// What the reply means for the task. An earlier loss of the lease stays: no reply can change it.
    fn verdict(&self, reply: Result<ReleaseOutcome, Failure>) -> Result<(), LockError> {
        let (context, key) = (&self.context, &self.key);
        let reason = match (self.lost, reply) {
            (Some(reason), _) => reason,
            (None, Ok(ReleaseOutcome::NotOurs)) if context.clock.now() >= self.valid_until => {
                LeaseLost::Expired
            }
            (None, Ok(ReleaseOutcome::NotOurs)) => LeaseLost::TakenAway,
            (None, Ok(ReleaseOutcome::Released | ReleaseOutcome::ReleasedUnserved)) => {
                return Ok(());
            }
            (None, Ok(ReleaseOutcome::NotStored | ReleaseOutcome::ReleasedWithoutResult)) => {
                let full = "the server has no memory left for the result of the run";
                return Err(LockError::unavailable(full).about(key));
            }
            (None, Err(failure)) => return Err(LockError::from(failure).about(key)),
        };
        Err(LockError::lost(key, reason, context.outage.failure()))
    }
}
