//! A request for a key while it is in flight. The task that caused it polls it, so that a lock costs no second task.
//!
//! If that task is dropped, or does not poll for a second, the manager's executor continues with the request (`finish_on_executor`
//! in `driver/effects.rs`). Its reply is then an event like any other. A grant goes to the next waiter of this process. If there is
//! none, the request ends by a release (`end_request` in `engine/acquiring.rs`). A dropped acquire needs no other clean-up.

use std::{
    mem,
    sync::Arc,
    task::{Context as TaskContext, Poll},
};

use crate::{
    backend::{Acquired, StoreFuture, owner::Owner},
    driver::context::Context,
    engine::request::AcquireReply,
    failure::Failure,
    key::Shown,
    runtime::mutex::Mutex,
};

pub(crate) struct AcquireInFlight {
    pub(crate) owner: Arc<Owner>,
    /// Locked while the reply is polled, but for the first time: then only the task has it. Later the executor may take it.
    reply: Mutex<Reply>,
}

enum Reply {
    /// The task has it, and has not polled it.
    WithTask,
    /// Polled by the task.
    Pending(StoreFuture<Acquired>),
    /// The reply has come, or the executor waits for it.
    Elsewhere,
}

/// The request as the task has it that polls it.
pub(crate) struct PolledRequest {
    pub(crate) shared: Arc<AcquireInFlight>,
    /// Not polled yet. The first poll sends it.
    first: Option<StoreFuture<Acquired>>,
}

impl AcquireInFlight {
    pub(crate) fn new(owner: Arc<Owner>) -> Self {
        Self {
            owner,
            reply: Mutex::new(Reply::WithTask),
        }
    }

    /// Takes the request from the task, if its reply has not come. A task that has not polled it hands it over with its first poll.
    pub(crate) fn take(&self) -> Option<StoreFuture<Acquired>> {
        match mem::replace(&mut *self.reply.lock(), Reply::Elsewhere) {
            Reply::Pending(reply) => Some(reply),
            Reply::WithTask | Reply::Elsewhere => None,
        }
    }
}

impl PolledRequest {
    pub(crate) fn new(shared: Arc<AcquireInFlight>, reply: StoreFuture<Acquired>) -> Self {
        let first = Some(reply);
        Self { shared, first }
    }

    /// Polls the request for the task. Stays pending once the executor has the request: the event of its reply then wakes the
    /// waiter.
    pub(crate) fn poll(
        &mut self,
        context: &mut TaskContext<'_>,
    ) -> Poll<Result<Acquired, Failure>> {
        if let Some(first) = &mut self.first {
            let polled = first.as_mut().poll(context);
            if polled.is_pending() {
                let mut state = self.shared.reply.lock();
                if let Reply::WithTask = *state
                    && let Some(first) = self.first.take()
                {
                    *state = Reply::Pending(first);
                }
            }
            return polled;
        }
        let mut state = self.shared.reply.lock();
        let Reply::Pending(reply) = &mut *state else {
            return Poll::Pending;
        };
        let polled = reply.as_mut().poll(context);
        if polled.is_ready() {
            *state = Reply::Elsewhere;
        }
        polled
    }

    /// Whether the executor must wait for the reply, although the task has it: the process was stopped for a second before the first
    /// poll.
    pub(crate) fn is_left_to_the_executor(&self) -> bool {
        self.first.is_some()
    }

    /// Takes the request from the task, if its reply has not come.
    pub(crate) fn take(&mut self) -> Option<StoreFuture<Acquired>> {
        self.first.take().or_else(|| self.shared.take())
    }
}

/// What the reply to an acquire says, and what is known of its copies.
pub(crate) fn read_reply(
    context: &Context,
    owner: &Owner,
    result: Result<Acquired, Failure>,
) -> AcquireReply {
    context.outage.note(&result, &context.clock);
    let is_settled = owner.note_reply(&result);
    if let Err(failure) = &result {
        tracing::debug!(key = %Shown(&owner.full_key), ?failure, "an acquire failed");
    }
    AcquireReply {
        result: result.map(|acquired| acquired.outcome),
        is_settled,
        has_not_left: owner.in_flight.is_empty(),
        is_astray: !owner.in_flight.is_on_one_connection(),
    }
}
