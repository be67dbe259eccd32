//! The one owner of a lease inside this process. When it goes, the lock goes, to the next task or back to the server.

use std::sync::Arc;

use tokio::sync::oneshot;

use crate::{
    arbiter::Arbiter,
    engine::Open,
    error::LockError,
    lease::{LeaseLost, LeaseState},
    release::{Release, Reply},
    seeker,
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
        let (reply, word) = oneshot::channel();
        self.let_go(Some(reply));
        match word.await {
            Ok(word) => word,
            Err(_) => Err(
                LockError::unavailable("the runtime that the release ran on has ended")
                    .about(self.lease.key()),
            ),
        }
    }

    fn let_go(&mut self, reply: Reply) {
        // Kept to the end: a shutdown must not find nothing held and nothing on its way between the two.
        let Some(_held) = self.open.take() else {
            return;
        };
        let lost = self.lease.ended();
        self.lease.end(LeaseLost::Released);
        let next = self.arbiter.next_after(&self.lease, lost);
        if matches!(next, Next::HasIt) {
            if let Some(reply) = reply {
                // The future that waited may have been dropped.
                drop(reply.send(Ok(())));
            }
            return;
        }
        let tenure = &self.lease.tenure;
        tenure.engine.renewal.forget(tenure);
        // The release is started before the next seeker is, so that it reaches the connection first.
        Release::of(&self.lease, lost).start(&tenure.engine, reply);
        if let Next::Seeks(signal) = next {
            seeker::start(&self.arbiter, &tenure.key, signal);
        }
    }
}

impl Drop for Holding {
    /// Never blocks: the release runs on the manager's thread, also if the user's runtime is gone or shutting down.
    fn drop(&mut self) {
        self.let_go(None);
    }
}
