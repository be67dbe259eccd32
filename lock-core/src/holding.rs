//! The one owner of a lease inside this process. When it goes, the lock goes.

use std::sync::Arc;

use tokio::sync::oneshot;

use crate::{
    arbiter::Arbiter,
    engine::Open,
    error::LockError,
    lease::LeaseState,
    release::{Release, Reply},
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
        let open = Some(lease.engine.open.open());
        Self {
            lease,
            arbiter,
            open,
        }
    }

    /// The task has its guard: from now on the lease is renewed. A grant that no task picks up is not.
    pub(crate) fn begin(&self) {
        self.lease.engine.renewal.watch(&self.lease);
    }

    /// Gives the lease to nobody, without releasing it: another taker is found for it.
    pub(crate) fn defuse(mut self) {
        self.open = None;
    }

    pub(crate) fn lease(&self) -> &Arc<LeaseState> {
        &self.lease
    }

    /// Releases and waits for the word of the backend.
    ///
    /// Dropping the future leaves the release under way.
    pub(crate) async fn release(mut self) -> Result<(), LockError> {
        let (reply, word) = oneshot::channel();
        self.let_go(Some(reply));
        match word.await {
            Ok(word) => word,
            Err(_) => Err(
                LockError::unavailable("the runtime that the release ran on has ended")
                    .about(&self.lease.key),
            ),
        }
    }

    fn let_go(&mut self, reply: Reply) {
        let Some(open) = self.open.take() else { return };
        let lost = self.lease.let_go();
        let release = Release::of(&self.lease, lost);
        // The release is started before anyone is told that the place is free, so that it reaches the connection before
        // the next local task's acquire does.
        release.start(&self.lease.engine, open, reply);
        self.arbiter.vacate(&self.lease);
    }
}

impl Drop for Holding {
    /// Never blocks: the release runs on the manager's thread, also if the user's runtime is gone or shutting down.
    fn drop(&mut self) {
        self.let_go(None);
    }
}
