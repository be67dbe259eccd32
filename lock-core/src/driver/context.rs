//! The context that all parts of a manager share, such as its backend, its executor and its clock.

use std::{future::Future, sync::Arc, time::Duration};

use crate::{
    backend::{Backend, Reply, grants::Grants, owner_token::OwnerTokens, timing::Timing},
    driver::{outage::Outage, ticking::Ticking},
    error::LockError,
    fencing::{ClockIndex, KnownTokens},
    moment::Moment,
    runtime::{clock::Clock, executor::Executor, tally::Tally},
    telemetry::refusals::Refusals,
};

pub(crate) struct Context {
    pub(crate) backend: Arc<dyn Backend>,
    /// Returns the fencing clock of a full key.
    pub(crate) clock_of: fn(&str) -> ClockIndex,
    pub(crate) executor: Executor,
    pub(crate) clock: Clock,
    pub(crate) grants: Arc<Grants>,
    pub(crate) timing: Timing,
    pub(crate) owner_tokens: OwnerTokens,
    /// The leases that are held. A shutdown waits for them.
    pub(crate) held: Arc<Tally>,
    /// The keys that have a state, and the releases in flight. A shutdown waits for them, too.
    pub(crate) in_progress: Arc<Tally>,
    /// Releases that continue after their call has returned. The drop of the last manager waits for them.
    pub(crate) in_background: Arc<Tally>,
    pub(crate) outage: Arc<Outage>,
    refusals: Refusals,
    /// The fencing tokens that this manager has seen. Each new one must be larger.
    pub(crate) known_tokens: Arc<KnownTokens>,
    pub(crate) ticking: Arc<Ticking>,
}

impl Context {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        grants: Arc<Grants>,
        owner_tokens: OwnerTokens,
        executor: Executor,
        clock: Clock,
        timing: Timing,
        outage: Outage,
    ) -> Self {
        let traits = backend.traits();
        Self {
            clock_of: traits.clock_of,
            known_tokens: Arc::new(KnownTokens::of_clocks(traits.clocks)),
            backend,
            grants,
            executor,
            clock,
            timing,
            owner_tokens,
            held: Arc::default(),
            in_progress: Arc::default(),
            in_background: Arc::default(),
            outage: Arc::new(outage),
            refusals: Refusals::new(),
            ticking: Arc::new(Ticking::new()),
        }
    }

    /// Logs that an acquire is refused as unavailable, so that an outage can be seen in the log even if the program does
    /// not log its errors.
    ///
    /// No mutex may be held, since this calls subscribers.
    pub(crate) fn logged(&self, error: LockError) -> LockError {
        if !matches!(error, LockError::Unavailable { .. }) {
            return error;
        }
        self.refusals.log(503, &error, self.clock.now());
        error.logged()
    }

    /// Sends a request on the manager's executor, and waits for its reply.
    ///
    /// Dropping the future does not cancel the request.
    pub(crate) async fn request<T: Send + 'static>(
        &self,
        question: impl FnOnce(&dyn Backend) -> Reply<T>,
    ) -> Result<T, LockError> {
        match self.executor.run(question(&*self.backend)).await {
            Some(reply) => reply.map_err(LockError::from),
            None => Err(LockError::unavailable(
                "the runtime that sent the request has ended",
            )),
        }
    }

    /// Starts the task of the timers unless it is running. If it runs on a runtime of the caller, it ends with that
    /// runtime, and has to be started again.
    pub(crate) fn ensure_ticking(&self) {
        self.ticking.ensure_running(&self.executor, &self.clock);
    }

    /// Waits for a moment at which nothing is held or in flight.
    pub(crate) async fn emptied(&self) {
        // Repeated, because an acquire in flight may become a held lease, and a held lease a release in flight.
        while self.held.count() + self.in_progress.count() > 0 {
            self.held.emptied().await;
            self.in_progress.emptied().await;
        }
    }

    /// Waits for `event`, for at most `time`. Returns `true` if it happened.
    pub(crate) async fn within(&self, time: Duration, event: impl Future<Output = ()>) -> bool {
        let deadline = self.clock.now().after(time);
        self.by(Some(deadline), event).await.is_some()
    }

    /// Waits for `event` until the deadline, if there is one. Returns `None` if it did not happen.
    pub(crate) async fn by<T>(
        &self,
        deadline: Option<Moment>,
        event: impl Future<Output = T>,
    ) -> Option<T> {
        let Some(deadline) = deadline else {
            return Some(event.await);
        };
        tokio::select! {
            biased;
            result = event => Some(result),
            () = self.executor.sleep_until(&self.clock, deadline) => None,
        }
    }

    /// Returns how long a reply may take.
    pub(crate) fn reply_within(&self) -> Duration {
        self.timing.reply_within(self.backend.traits().round_trip)
    }
}
