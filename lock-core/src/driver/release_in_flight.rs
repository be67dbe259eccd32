//! A release in flight, until its outcome is known.
//!
//! Until then, this process sends the next acquire of the key after the release. A connection keeps the order of its
//! requests, so the acquire finds the key free. If it is not certain that both use one connection (with several servers,
//! without scripts, or before there is a connection), the acquire waits for the outcome of the release. Even on one
//! connection, the order can be broken by a redirect, a lost connection, a script that the server has forgotten, or
//! replicas that must acknowledge. The reply is then "busy", and the acquire waits for the outcome and is sent once more.
//!
//! Each acquire waits for at most one command time-out, because the task that polls the release may have stopped polling
//! it.
//!
//! Rejected: a state for a release in flight in the state machine of the key. No decision would depend on it, because an
//! acquire that is sent after a release is just a request that takes longer.

use std::sync::Arc;

use crate::{
    backend::{Acquire, Answered, Release, Reply, RunResult, owner::Owner},
    driver::context::Context,
    engine::{
        reply::{AcquireOutcome, QueueMode, ReleaseOutcome, WakeUpMode},
        transition::ReleaseAction,
    },
    error::{LeaseLost, LockError},
    failure::Failure,
    moment::Moment,
    runtime::{
        mutex::Mutex,
        tally::{Open, Tally},
    },
    telemetry,
};

/// A release in flight, which the entry of its key keeps until the outcome is known.
pub(crate) struct ReleaseInFlight {
    pub(super) context: Arc<Context>,
    pub(super) action: ReleaseAction<Arc<Owner>>,
    pub(super) started: Moment,
    /// The result of a run, until it is stored or given up.
    pub(super) result: Mutex<Option<RunResult>>,
    /// Empty once the outcome is known.
    outcome: Tally,
    /// Keeps a shutdown waiting for the release.
    _in_progress: Open,
}

/// Exists until the outcome of the release is known. Its drop notifies the registry and the acquires that wait for the
/// outcome.
pub(crate) struct OpenRelease(pub(super) Arc<ReleaseInFlight>);

impl OpenRelease {
    pub(crate) fn new(
        context: &Arc<Context>,
        action: ReleaseAction<Arc<Owner>>,
        now: Moment,
    ) -> Self {
        Self(Arc::new(ReleaseInFlight {
            context: context.clone(),
            action,
            started: now,
            result: Mutex::new(None),
            outcome: Tally::of_one(),
            _in_progress: context.in_progress.open(),
        }))
    }

    /// Converts the outcome into the task's result. If the lease was lost before, the result is that loss, whatever the
    /// reply.
    pub(super) fn verdict(
        &self,
        lost: Option<LeaseLost>,
        outcome: Result<ReleaseOutcome, Failure>,
    ) -> Result<(), LockError> {
        let ReleaseInFlight {
            context,
            action,
            started,
            ..
        } = &*self.0;
        let key = &action.owner.key;
        context.outage.note(&outcome, &context.clock);
        let reason = match (lost, outcome) {
            (Some(reason), _) => {
                return Err(LockError::lost(key, reason, context.outage.failure()));
            }
            (None, Ok(ReleaseOutcome::NotOurs)) if context.clock.now() >= action.valid_until => {
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
        // Reported only for a lease that was valid when the release began. Otherwise this release abandons a request.
        if *started < action.valid_until {
            telemetry::lost_at_release(key, action.owner.mode.kind().shown(), reason);
        }
        Err(LockError::lost(key, reason, context.outage.failure()))
    }
}

impl Drop for OpenRelease {
    fn drop(&mut self) {
        let ReleaseInFlight {
            context, action, ..
        } = &*self.0;
        if let Some(listener) = context.ticking.listener() {
            listener.released(&action.owner);
        }
        self.0.outcome.close_one();
    }
}

impl ReleaseInFlight {
    /// Makes one try, which the first poll of the future sends.
    pub(super) fn try_once(&self) -> Reply<Answered<ReleaseOutcome>> {
        let (context, action) = (&self.context, &self.action);
        let kept_for = |until: Moment| until.since(context.clock.now());
        // Cloned before the call, so that the mutex is free: the backend in memory releases within the call, and wakes user
        // tasks.
        let result = self.result.lock().clone();
        context.backend.release(Release {
            owner: action.owner.clone(),
            keep: action
                .kept_until
                .map(kept_for)
                .filter(|keep| !keep.is_zero()),
            result,
            known_fencing: context.known_tokens.of(action.owner.clock),
            may_be_queued: action.is_queued,
            valid_until: action.valid_until,
        })
    }

    pub(crate) fn has_outcome(&self) -> bool {
        self.outcome.count() == 0
    }

    /// Sends an acquire of the same key after the release.
    pub(crate) async fn acquire_after_release(
        self: Arc<Self>,
        mut request: Acquire,
    ) -> Result<Answered<AcquireOutcome>, Failure> {
        let context = &self.context;
        let until = context.clock.now().after(context.timing.command_timeout);
        request.after = self.action.owner.released_on.only_connection();
        if request.after.is_none() {
            self.await_outcome(until).await;
        }
        let answer = context.backend.acquire(request.clone()).await;
        let Ok(Answered {
            outcome: AcquireOutcome::Busy(busy),
            order,
        }) = &answer
        else {
            return answer;
        };
        // If the acquire has an entry in the queue, the release grants it the key by a message.
        let is_queued =
            request.queue_mode != QueueMode::DoNotQueue && busy.wake_up == WakeUpMode::Push;
        if is_queued || busy.needs_new_token() || !self.await_outcome(until).await {
            return answer;
        }
        request.owner.in_flight.note_answer(*order);
        context.backend.acquire(request).await
    }

    /// Waits for the outcome. Returns `true` if it arrived in time.
    async fn await_outcome(&self, until: Moment) -> bool {
        let left = until.since(self.context.clock.now());
        self.context.within(left, self.outcome.emptied()).await
    }
}
