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
        context::forked, held::lease_state::LeaseState, key_state::Next, pending_flush::Leaving,
        registry::Arbiter,
    },
    runtime::tally::Open,
    telemetry,
};

/// Owns a lease; shared by the guards that re-entered it.
pub(crate) struct Holding {
    lease: Arc<LeaseState>,
    arbiter: Arc<Arbiter>,
    /// `None` once the lease was let go.
    open: Option<Open>,
    watch: telemetry::Hold,
}

impl Holding {
    pub(crate) fn new(lease: Arc<LeaseState>, arbiter: Arc<Arbiter>) -> Self {
        let open = Some(lease.engine().held.open());
        Self {
            lease,
            arbiter,
            open,
            watch: telemetry::Hold::default(),
        }
    }

    /// A task has taken it, and those who listen are told of the hold.
    pub(crate) fn watch(&mut self, watch: telemetry::Hold) {
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
        let word = match self.leave() {
            Left::Nothing => Word::Done,
            Left::Forked => Word::Forked,
            Left::ToGiveBack { next, lost, _held } => {
                let (reply, word) = oneshot::channel();
                self.arbiter.give_back(&self.lease, lost, next, Some(reply));
                Word::Coming(word)
            }
        };
        Releasing {
            word,
            leaving: Leaving::Made,
            holding: self,
        }
    }

    /// Ends the lease, once, and hands it to the next task; if that cannot be, it is to be given back to the server.
    fn leave(&mut self) -> Left {
        // Kept until the release has begun: a shutdown must not find nothing held and nothing on its way between the two.
        let Some(held) = self.open.take() else {
            return Left::Nothing;
        };
        let lost = self.lease.ended();
        if lost == Some(LeaseLost::Forked) {
            // What waits for its end, or listens, does so in the parent.
            mem::forget((held, mem::take(&mut self.watch)));
            return Left::Forked;
        }
        self.lease.end(LeaseLost::Released);
        self.watch.end();
        match self.arbiter.next_after(&self.lease, lost) {
            Next::HasIt => Left::Nothing,
            next => Left::ToGiveBack {
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
    word: Word,
    leaving: Leaving,
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

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let (key, engine) = (this.holding.lease.key(), &this.holding.arbiter.engine);
        let word = match &mut this.word {
            Word::Done => return Poll::Ready(Ok(())),
            // In a child that was forked after the first poll it never comes.
            Word::Coming(word) if this.leaving == Leaving::Made || engine.is_here() => word,
            Word::Coming(_) | Word::Forked => return Poll::Ready(Err(forked().about(key))),
        };
        // In memory it is there at once.
        if let Poll::Ready(word) = Pin::new(word).poll(context) {
            return Poll::Ready(word.unwrap_or_else(|_| {
                let ended = "the runtime that the release ran on has ended";
                Err(LockError::unavailable(ended).about(key))
            }));
        }
        if this.leaving != Leaving::Left {
            // Whichever it is, the answer is still to come, and wakes.
            let _left = this.leaving.poll(&*engine.store, context);
        }
        Poll::Pending
    }
}

impl Drop for Releasing {
    fn drop(&mut self) {
        let engine = &self.holding.arbiter.engine;
        if matches!(self.word, Word::Coming(_)) && self.leaving != Leaving::Left && engine.is_here()
        {
            self.leaving.now(&*engine.store);
        }
    }
}

/// What is left to do for a lease that was let go.
enum Left {
    Nothing,
    /// This process was forked from the one that has the lease.
    Forked,
    /// No task of this process takes it over.
    ToGiveBack {
        next: Next,
        lost: Option<LeaseLost>,
        _held: Open,
    },
}

impl Drop for Holding {
    /// Never blocks: the manager's thread sees to the rest, also if the user's runtime is gone or shutting down.
    fn drop(&mut self) {
        if let Left::ToGiveBack { next, lost, _held } = self.leave() {
            self.arbiter.give_back(&self.lease, lost, next, None);
            self.arbiter.engine.store.flush();
        }
    }
}
