//! The one owner of a lease inside this process. When it goes, the lock goes, to the next task or back to the server.

use std::sync::Arc;

use tokio::sync::oneshot;

use crate::{
    arbiter::Arbiter,
    engine::Open,
    error::LockError,
    lease::{LeaseLost, LeaseState},
    leaving::{Answered, Leaving},
    slot::Next,
};

/// Owns a lease; shared by the guards that re-entered it.
pub(crate) struct Holding {
    lease: Arc<LeaseState>,
    arbiter: Arc<Arbiter>,
    /// `None` once the lease was let go.
    open: Option<Open>,
}

impl Holding {
    pub(crate) fn new(lease: Arc<LeaseState>, arbiter: Arc<Arbiter>) -> Self {
        let open = Some(lease.engine().held.open());
        Self {
            lease,
            arbiter,
            open,
        }
    }

    /// Gives it up without letting go: another taker is found for the lease.
    pub(crate) fn defuse(mut self) {
        self.open = None;
    }

    pub(crate) fn lease(&self) -> &Arc<LeaseState> {
        &self.lease
    }

    /// Releases and waits for the word of the backend; there is nothing to wait for if the next task has it.
    ///
    /// Dropping the future leaves the release under way.
    pub(crate) async fn release(mut self) -> Result<(), LockError> {
        let Some(left) = self.leave() else {
            return Ok(());
        };
        let (reply, word) = oneshot::channel();
        self.arbiter
            .give_back(&self.lease, left.lost, left.next, Some(reply));
        let word = Answered {
            answer: word,
            leaving: Leaving::Made,
            backend: &*self.arbiter.engine.backend,
        };
        word.await.unwrap_or_else(|_| {
            Err(
                LockError::unavailable("the runtime that the release ran on has ended")
                    .about(self.lease.key()),
            )
        })
    }

    /// Ends the lease, once, and hands it to the next task; if that cannot be, it is to be given back to the server.
    fn leave(&mut self) -> Option<Left> {
        // Kept until the release has begun: a shutdown must not find nothing held and nothing on its way between the two.
        let held = self.open.take()?;
        let lost = self.lease.ended();
        self.lease.end(LeaseLost::Released);
        match self.arbiter.next_after(&self.lease, lost) {
            Next::HasIt => None,
            next => Some(Left {
                next,
                lost,
                _held: held,
            }),
        }
    }
}

/// What is left to do for a lease that no task of this process takes over.
struct Left {
    next: Next,
    lost: Option<LeaseLost>,
    _held: Open,
}

impl Drop for Holding {
    /// Never blocks: the manager's thread sees to the rest, also if the user's runtime is gone or shutting down.
    fn drop(&mut self) {
        if let Some(left) = self.leave() {
            self.arbiter
                .give_back(&self.lease, left.lost, left.next, None);
            self.arbiter.engine.backend.flush();
        }
    }
}
