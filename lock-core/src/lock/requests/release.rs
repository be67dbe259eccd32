//! Releases a key. The task that releases polls the release until it knows the result. If the task is dropped, the manager's executor
//! goes on with it. The store repeats the release until it is certain (`store/until_certain.rs`).

use std::{
    future::Future,
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
    store::{CertainRelease, Failure, Release, ReleaseOutcome, RunResult, owner::Owner},
};

/// A release that its task may wait for. Dropping it leaves the release in flight.
///
/// Written by hand, to be small: each of thousands of tasks that wait for a lock keeps room for one.
#[must_use = "futures do nothing unless polled"]
pub(crate) struct Releasing {
    context: Option<Arc<Context>>,
    key: LockKey,
    /// The release, until its result is known.
    work: Option<ReleaseWork>,
}

type ReleaseWork = Pin<Box<dyn Future<Output = Result<(), LockError>> + Send>>;

/// Begins a release, which is sent with the first poll. `open_release` makes the next acquire of the key take account of the release.
/// `result`: what a run leaves.
pub(crate) fn release(
    context: &Arc<Context>,
    key: &LockKey,
    action: ReleaseAction<Arc<Owner>>,
    started: Moment,
    lost: Option<LeaseLost>,
    open_release: Option<OpenRelease>,
    result: Option<RunResult>,
) -> Releasing {
    let noted = open_release.as_ref().map(OpenRelease::release);
    let in_flight = noted.map(|release| release.connections.clone());
    let (owner, valid_until) = (action.owner, action.valid_until);
    let release = CertainRelease {
        request: Release {
            keep: None,
            result,
            known_fencing: 0,
            may_be_queued: action.is_queued,
            in_flight: in_flight.unwrap_or_default(),
            of_server: None,
            owner,
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
    };
    let (manager, of_key) = (context.clone(), key.clone());
    Releasing {
        context: Some(context.clone()),
        key: key.clone(),
        work: Some(Box::pin(async move {
            let reply = manager.store.release(release).await;
            manager.outage.note(&reply, &manager.clock);
            drop(open_release);
            verdict(&manager, &of_key, valid_until, lost, reply)
        })),
    }
}

impl Releasing {
    /// For a lease that this process inherited by a fork.
    pub(crate) fn forked(key: LockKey) -> Self {
        Self {
            context: None,
            key,
            work: None,
        }
    }

    /// For a lease that its task lost, and that other tasks still have.
    pub(crate) fn lost(key: LockKey, reason: LeaseLost) -> Self {
        let lost = LockError::lost(&key, reason, None);
        Self {
            context: None,
            key,
            work: Some(Box::pin(std::future::ready(Err(lost)))),
        }
    }

    /// Sends the request now, before any other request.
    pub(crate) fn send(&mut self) {
        if let Some(work) = &mut self.work {
            let polled = work
                .as_mut()
                .poll(&mut TaskContext::from_waker(std::task::Waker::noop()));
            if let Poll::Ready(result) = polled {
                self.work = Some(Box::pin(std::future::ready(result)));
            }
        }
    }
}

impl Future for Releasing {
    type Output = Result<(), LockError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let is_here = (this.context.as_ref()).is_none_or(|manager| manager.is_here());
        // In a child that was forked after the first poll the reply never comes.
        let (true, Some(work)) = (is_here, &mut this.work) else {
            return Poll::Ready(Err(forked().about(&this.key)));
        };
        let result = ready!(work.as_mut().poll(context));
        this.work = None;
        Poll::Ready(result)
    }
}

impl Drop for Releasing {
    fn drop(&mut self) {
        let (Some(context), Some(work)) = (&self.context, self.work.take()) else {
            return;
        };
        if !context.is_here() {
            // A release in flight belongs to the parent.
            return std::mem::forget(work);
        }
        context.executor.start(async move { drop(work.await) });
    }
}

/// What the reply means for the task. An earlier loss of the lease stays: no reply can change it.
fn verdict(
    context: &Context,
    key: &LockKey,
    valid_until: Moment,
    lost: Option<LeaseLost>,
    reply: Result<ReleaseOutcome, Failure>,
) -> Result<(), LockError> {
    let reason = match (lost, reply) {
        (Some(reason), _) => reason,
        (None, Ok(ReleaseOutcome::NotOurs)) if context.clock.now() >= valid_until => {
            LeaseLost::Expired
        }
        (None, Ok(ReleaseOutcome::NotOurs)) => LeaseLost::TakenAway,
        (None, Ok(ReleaseOutcome::Released | ReleaseOutcome::ReleasedUnserved)) => return Ok(()),
        (None, Ok(ReleaseOutcome::NotStored | ReleaseOutcome::ReleasedWithoutResult)) => {
            let full = "the server has no memory left for the result of the run";
            return Err(LockError::unavailable(full).about(key));
        }
        (None, Err(failure)) => return Err(LockError::from(failure).about(key)),
    };
    Err(LockError::lost(key, reason, context.outage.failure()))
}
