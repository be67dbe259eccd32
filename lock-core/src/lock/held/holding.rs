//! The one owner of a lease inside this process. When it goes, the lock goes, to the next task or back to the server.

use std::{
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::sync::oneshot;
use tracing::Span;

use crate::{
    error::{LeaseLost, LockError},
    lock::{
        context::forked, held::lease_state::LeaseState, key_state::AfterRelease,
        pending_flush::PendingFlush, registry::Registry,
    },
    runtime::tally::Open,
    telemetry,
};

/// Owns a lease; shared by the guards that re-entered it.
pub(crate) struct Holding {
    lease: Arc<LeaseState>,
    registry: Arc<Registry>,
    /// `None` once the lease was let go.
    open: Option<Open>,
    watch: telemetry::WatchedHold,
}

impl Holding {
    pub(crate) fn new(lease: Arc<LeaseState>, registry: Arc<Registry>) -> Self {
        let open = Some(lease.context().held.open());
        Self {
            lease,
            registry,
            open,
            watch: telemetry::WatchedHold::default(),
        }
    }

    /// A task has taken it, and those who listen are told of the hold.
    pub(crate) fn watch(&mut self, watch: telemetry::WatchedHold) {
        self.watch = watch;
    }

    /// For what runs under the lock.
    pub(crate) fn span(&self) -> Span {
        self.watch.span()
    }

    /// Gives it up without letting go: another taker is found for the lease.
    pub(crate) fn defuse(mut self) {
        self.open = None;
    }

    pub(crate) fn lease(&self) -> &Arc<LeaseState> {
        &self.lease
    }

    /// Releases; the future waits for the word of the backend. There is nothing to wait for if the next task has it.
    pub(crate) fn release(mut self) -> Releasing {
        let result = match self.leave() {
            ReleaseToDo::Nothing => Word::Done,
            ReleaseToDo::Forked => Word::Forked,
            ReleaseToDo::ToGiveBack { next, lost, _held } => {
                let (reply, result) = oneshot::channel();
                self.registry
                    .give_back(&self.lease, lost, next, Some(reply));
                Word::Coming(result)
            }
        };
        Releasing {
            result,
            flush: PendingFlush::Buffered,
            holding: self,
        }
    }

    /// Ends the lease, once, and hands it to the next task; if that cannot be, it is to be given back to the server.
    fn leave(&mut self) -> ReleaseToDo {
        // Kept until the release has begun: a shutdown must not find nothing held and nothing on its way between the two.
        let Some(held) = self.open.take() else {
            return ReleaseToDo::Nothing;
        };
        let lost = self.lease.ended();
        if lost == Some(LeaseLost::Forked) {
            // What waits for its end, or listens, does so in the parent.
            mem::forget((held, mem::take(&mut self.watch)));
            return ReleaseToDo::Forked;
        }
        self.lease.end(LeaseLost::Released);
        self.watch.end();
        match self.registry.next_after(&self.lease, lost) {
            AfterRelease::NextTask => ReleaseToDo::Nothing,
            next => ReleaseToDo::ToGiveBack {
                next,
                lost,
                _held: held,
            },
        }
    }
}

/// A release under way, which goes on when this is dropped.
///
/// Written by hand: thousands of tasks that wait for a lock keep room for it.
#[must_use = "futures do nothing unless polled"]
pub(crate) struct Releasing {
    result: Word,
    flush: PendingFlush,
    holding: Holding,
}

/// What a release is told.
enum Word {
    Done,
    Coming(oneshot::Receiver<Result<(), LockError>>),
    /// This process is not the one that has the lease.
    Forked,
}

impl Future for Releasing {
    type Output = Result<(), LockError>;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let (key, context) = (this.holding.lease.key(), &this.holding.registry.context);
        let result = match &mut this.result {
            Word::Done => return Poll::Ready(Ok(())),
            // In a child that was forked after the first poll it never comes.
            Word::Coming(result) if this.flush == PendingFlush::Buffered || context.is_here() => {
                result
            }
            Word::Coming(_) | Word::Forked => return Poll::Ready(Err(forked().about(key))),
        };
        // In memory it is there at once.
        if let Poll::Ready(result) = Pin::new(result).poll(task) {
            return Poll::Ready(result.unwrap_or_else(|_| {
                let ended = "the runtime that the release ran on has ended";
                Err(LockError::unavailable(ended).about(key))
            }));
        }
        if this.flush != PendingFlush::Flushed {
            // Whichever it is, the answer is still to come, and wakes.
            let _left = this.flush.poll(&*context.store, task);
        }
        Poll::Pending
    }
}

impl Drop for Releasing {
    fn drop(&mut self) {
        let context = &self.holding.registry.context;
        if matches!(self.result, Word::Coming(_))
            && self.flush != PendingFlush::Flushed
            && context.is_here()
        {
            self.flush.flush_now(&*context.store);
        }
    }
}

/// What is left to do for a lease that was let go.
enum ReleaseToDo {
    Nothing,
    /// This process was forked from the one that has the lease.
    Forked,
    /// No task of this process takes it over.
    ToGiveBack {
        next: AfterRelease,
        lost: Option<LeaseLost>,
        _held: Open,
    },
}

impl Drop for Holding {
    /// Never blocks: the manager's thread sees to the rest, also if the user's runtime is gone or shutting down.
    fn drop(&mut self) {
        if let ReleaseToDo::ToGiveBack { next, lost, _held } = self.leave() {
            self.registry.give_back(&self.lease, lost, next, None);
            self.registry.context.store.flush();
        }
    }
}
