//! The effects of a transition, which are carried out after the mutex has been unlocked.

use std::{cell::Cell, sync::Arc, time::Duration};

use crate::{
    backend::{Acquire, Answered, Renew, Reply, on_executor::ENDED, owner::Owner},
    driver::{
        acquire_in_flight::{AcquireInFlight, read_reply},
        context::Context,
        key_map::{KeyEntry, StateAction},
        release_in_flight::{OpenRelease, ReleaseInFlight},
        releasing::Releasing,
        ticking::{EventListener, LiveEvent},
    },
    engine::{
        event::Event,
        reply::AcquireOutcome,
        server_lease::RenewalReply,
        transition::{AcquireAction, Action},
    },
    error::LeaseLost,
    failure::Failure,
    key::LockKey,
    mode::RequestKind,
    moment::Moment,
    runtime::{catch_panic::catch_panic, executor::Executor, tally::Open},
    telemetry,
};

#[derive(Default)]
pub(super) struct Effects {
    pub(super) actions: Vec<StateAction>,
    /// `true` if a request for the key is among the actions.
    pub(super) acquires: bool,
    /// The request that the current task has to poll.
    pub(super) to_poll: Option<Arc<AcquireInFlight>>,
    /// The release of this key that is in flight, after which the request must be sent.
    pub(super) after: Option<Arc<ReleaseInFlight>>,
    /// The request that the executor has to continue.
    pub(super) to_finish: Option<Arc<AcquireInFlight>>,
    pub(super) wakes_timers: bool,
    /// Keeps a shutdown waiting until a release among the actions has begun.
    pub(super) releasing: Option<Open>,
    /// Set if the task returns the lease to the server. Until that release has a reply, the next request is sent after it.
    pub(super) open_release: Option<OpenRelease>,
    /// The entry that was removed from the map. Dropping it may wake a shutdown.
    pub(super) ended: Option<Box<KeyEntry>>,
}

/// The maximum length of a list that its thread keeps for the next transition.
const LONGEST_SPARE: usize = 16;

thread_local! {
    /// A list for the actions of the next transition, which saves most transitions an allocation.
    static SPARE: Cell<Vec<StateAction>> = const { Cell::new(Vec::new()) };
}

/// Returns an empty list for actions.
pub(super) fn spare_list() -> Vec<StateAction> {
    // The spare list is gone while the thread ends.
    SPARE.try_with(Cell::take).unwrap_or_default()
}

impl Effects {
    /// Carries out the actions in order. Returns the request that the current task has to poll.
    pub(super) fn carry_out(
        self,
        context: &Arc<Context>,
        key: &LockKey,
        kind: RequestKind,
    ) -> Option<Arc<AcquireInFlight>> {
        if self.wakes_timers {
            context.ticking.alarm.wake();
            context.ensure_ticking();
        }
        let mut actions = self.actions;
        for action in actions.drain(..) {
            #[cfg(test)]
            crate::runtime::mutex::interleaved::point();
            match action {
                // A waker is user code, and may panic when it wakes or is dropped.
                Action::Wake(waker) => catch_panic(|| waker.wake()),
                Action::Drop(waker) => catch_panic(|| drop(waker)),
                Action::Acquire(acquire) => {
                    let owner = acquire.owner.clone();
                    let reply = request(context, acquire, self.after.as_ref());
                    let left = match &self.to_poll {
                        Some(request) => request.begin(reply),
                        None => Some(reply),
                    };
                    if let Some(reply) = left {
                        finish_on_executor(context, owner, reply);
                    }
                }
                Action::Renew {
                    owner,
                    ttl,
                    valid_until,
                    tokens,
                } => {
                    let due = Renew {
                        owner,
                        ttl,
                        // Filled in when the request is sent.
                        known_fencing: 0,
                        tokens,
                    };
                    queue_renewal(context, due, valid_until);
                }
                Action::Release(action) => {
                    let open = OpenRelease::new(context, action, context.clock.now());
                    drop(Releasing::begin(open, None, None));
                }
                Action::Learn(owner, token) => context.known_tokens.learn(owner.clock, token),
                Action::Extend { lease, valid_until } => {
                    // An observer has already seen the lease end. Its guard must not keep other tasks from the lock.
                    if let Some(reason) = lease.extend(valid_until) {
                        report(context, key, kind, Event::Lose(lease.id, reason));
                    }
                }
                Action::End { lease, reason } => {
                    let tied = lease.note_lost(reason);
                    for other in tied.iter().flat_map(|tied| tied.iter()) {
                        if other.id != lease.id
                            && other.end(LeaseLost::OtherKey) == LeaseLost::OtherKey
                        {
                            let event = Event::Lose(other.id, LeaseLost::OtherKey);
                            report(context, &other.key, other.kind(), event);
                        }
                    }
                }
                Action::HandedOverLocally => {
                    telemetry::handed_over(key, kind.shown(), "local");
                }
                Action::HandedOverRemotely => {
                    telemetry::handed_over(key, kind.shown(), "remote");
                }
                Action::Arm(_) | Action::FinishRequest => {}
            }
        }
        if actions.capacity() <= LONGEST_SPARE {
            // While the thread ends, the list is dropped.
            SPARE.try_with(|spare| spare.set(actions)).ok();
        }
        if let Some(request) = self.to_finish
            && let Some(reply) = request.take()
        {
            finish_on_executor(context, request.owner.clone(), reply);
        }
        drop((self.releasing, self.ended));
        self.to_poll
    }
}

/// Reports an event to the listener. After the manager has ended, there is no listener, and no key.
pub(super) fn report(context: &Context, key: &LockKey, kind: RequestKind, event: LiveEvent<'_>) {
    if let Some(listener) = context.ticking.listener() {
        listener.happened(key, kind, event);
    }
}

/// Creates a request, which is sent by its first poll.
fn request(
    context: &Context,
    action: AcquireAction<Arc<Owner>>,
    after: Option<&Arc<ReleaseInFlight>>,
) -> Reply<Answered<AcquireOutcome>> {
    let request = Acquire {
        owner: action.owner,
        ttl: action.ttl,
        known_fencing: action.known_fencing,
        tokens: action.tokens,
        queue_mode: action.queue_mode,
        queued_ttl: action.queued_ttl,
        after: None,
    };
    match after {
        Some(release) if !release.has_outcome() => {
            Box::pin(release.clone().acquire_after_release(request))
        }
        _ => context.backend.acquire(request),
    }
}

/// Hands a request to the executor, which waits for the reply. The request's task has left, or does not poll.
pub(super) fn finish_on_executor(
    context: &Arc<Context>,
    owner: Arc<Owner>,
    reply: Reply<Answered<AcquireOutcome>>,
) {
    let (listener, of_reply) = (context.ticking.listener(), context.clone());
    report_reply(&context.executor, reply, move |result| {
        let reply = read_reply(&of_reply, &owner, result);
        if let Some(listener) = listener {
            listener.happened(
                &owner.key,
                owner.mode.kind(),
                Event::Acquired(&owner, reply),
            );
        }
    });
}

/// Queues a renewal for the next batch. If it also takes tokens, it is sent at once, since the next task may need them
/// soon.
fn queue_renewal(context: &Arc<Context>, due: Renew, valid_until: Moment) {
    if due.tokens == 0 {
        context.ticking.push(due, valid_until);
    } else if let Some(listener) = context.ticking.listener() {
        renew(context, listener, vec![due], context.reply_within());
    }
}

/// Sends a batch of renewals. The executor waits for the reply instead of the task of the timers, because a slow reply must
/// not delay other renewals or the end of a lease.
pub(super) fn renew(
    context: &Arc<Context>,
    listener: Arc<dyn EventListener>,
    mut batch: Vec<Renew>,
    within: Duration,
) {
    // Read before the request is handed over, because the lease must not begin later than the ttl on the server.
    let sent = context.clock.now();
    for one in &mut batch {
        one.known_fencing = context.known_tokens.of(one.owner.clock);
    }
    let reply = context.backend.renew(batch.clone(), within);
    let of_reply = context.clone();
    report_reply(&context.executor, reply, move |replies| {
        // A renewal that takes tokens was sent by itself, and is not one of the batches that `ticking` counts.
        if batch.iter().all(|one| one.tokens == 0) {
            of_reply.ticking.note_reply();
        }
        let mut replies = replies.map(Vec::into_iter);
        for one in batch {
            let reply = match &mut replies {
                Ok(replies) => replies.next(),
                Err(failure) => Some(Err(failure.clone())),
            };
            if let Some(result) = reply {
                let reply = RenewalReply {
                    sent,
                    tokens: one.tokens,
                    result: &result,
                    retry_in: within / 2,
                };
                report_renewed(&of_reply, listener.clone(), &one.owner, reply);
            }
        }
    });
}

/// Records whether the backend replied to a renewal, and reports the reply.
pub(super) fn report_renewed(
    context: &Context,
    listener: Arc<dyn EventListener>,
    owner: &Arc<Owner>,
    reply: RenewalReply<'_>,
) {
    context.outage.note(reply.result, &context.clock);
    if let Err(failure) = reply.result {
        tracing::debug!(key = %owner.key.shown(), ?failure, "a renewal failed");
    }
    let event = Event::Renewed(owner, reply);
    listener.happened(&owner.key, owner.mode.kind(), event);
}

/// Starts a request, and calls `report` exactly once: with the reply, or with a failure if the runtime that waits for it
/// ends first.
fn report_reply<T: Send + 'static>(
    executor: &Executor,
    reply: Reply<T>,
    report: impl FnOnce(Result<T, Failure>) + Send + 'static,
) {
    let mut once = ReportOnce(Some(Box::new(report)));
    executor.start(async move {
        let reply = reply.await;
        once.report(reply);
    });
}

type Report<T> = Box<dyn FnOnce(Result<T, Failure>) + Send>;

struct ReportOnce<T>(Option<Report<T>>);

impl<T> ReportOnce<T> {
    fn report(&mut self, reply: Result<T, Failure>) {
        if let Some(report) = self.0.take() {
            report(reply);
        }
    }
}

impl<T> Drop for ReportOnce<T> {
    fn drop(&mut self) {
        self.report(Err(Failure::no_reply(ENDED)));
    }
}
