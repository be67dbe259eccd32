//! An acquire request in flight. The task that caused it also polls it, which saves a second task.
//!
//! If that task is dropped, or does not poll for a second, the manager's executor takes the request over
//! (`finish_on_executor` in `driver/effects.rs`). Its reply is then an event like any other: a grant goes to the next
//! waiter of this process, or, if there is none, the request ends with a release (`end_request` in `engine/acquiring.rs`).
//! A dropped acquire needs no other clean-up.

use std::{
    mem,
    sync::Arc,
    task::{Context as TaskContext, Poll},
};

use crate::{
    backend::{Answered, Reply, owner::Owner},
    driver::context::Context,
    engine::{reply::AcquireOutcome, request::AcquireReply},
    failure::Failure,
    key::Shown,
    runtime::mutex::Mutex,
};

/// A request, from the transition that causes it until its reply. It is owned by the task that polls it and by the entry of
/// its key.
pub(crate) struct AcquireInFlight {
    pub(crate) owner: Arc<Owner>,
    /// The mutex is locked while the reply is polled.
    stage: Mutex<Stage>,
}

enum Stage {
    /// The transition has been made, but the request has not been created yet.
    New,
    Polled(Reply<Answered<AcquireOutcome>>),
    /// The reply has arrived, or the executor waits for it.
    Elsewhere,
}

impl AcquireInFlight {
    pub(crate) fn new(owner: Arc<Owner>) -> Self {
        Self {
            owner,
            stage: Mutex::new(Stage::New),
        }
    }

    /// Stores the request, whose first poll sends it. Returns it if the executor has to poll it instead, because it was
    /// taken from the task since the transition, for example after the process was stopped for a second.
    pub(crate) fn begin(
        &self,
        reply: Reply<Answered<AcquireOutcome>>,
    ) -> Option<Reply<Answered<AcquireOutcome>>> {
        let mut stage = self.stage.lock();
        let Stage::New = *stage else {
            return Some(reply);
        };
        *stage = Stage::Polled(reply);
        None
    }

    /// Polls the request for the task. After the executor has taken the request over, this stays pending, and the event of
    /// the reply wakes the waiter.
    pub(crate) fn poll(
        &self,
        context: &mut TaskContext<'_>,
    ) -> Poll<Result<Answered<AcquireOutcome>, Failure>> {
        let mut stage = self.stage.lock();
        let Stage::Polled(reply) = &mut *stage else {
            return Poll::Pending;
        };
        let polled = reply.as_mut().poll(context);
        if polled.is_ready() {
            *stage = Stage::Elsewhere;
        }
        polled
    }

    /// Takes the request from the task if its reply has not arrived yet.
    pub(crate) fn take(&self) -> Option<Reply<Answered<AcquireOutcome>>> {
        match mem::replace(&mut *self.stage.lock(), Stage::Elsewhere) {
            Stage::Polled(reply) => Some(reply),
            Stage::New | Stage::Elsewhere => None,
        }
    }
}

/// Records the reply to an acquire, and adds what is known about other copies of the request.
pub(crate) fn read_reply(
    context: &Context,
    owner: &Owner,
    result: Result<Answered<AcquireOutcome>, Failure>,
) -> AcquireReply {
    context.outage.note(&result, &context.clock);
    let order = result.as_ref().ok().and_then(|answered| answered.order);
    let is_settled = owner.in_flight.note_answer(order);
    if let Err(failure) = &result {
        tracing::debug!(key = %Shown(&owner.full_key), ?failure, "an acquire failed");
    }
    AcquireReply {
        result: result.map(|answered| answered.outcome),
        is_settled,
        has_not_left: owner.in_flight.is_empty(),
        is_astray: !owner.in_flight.is_on_one_connection(),
    }
}
