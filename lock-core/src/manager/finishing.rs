//! Bodies that continue after their caller is dropped: `on_drop = finish`.
//!
//! The caller itself waits for the lock, so a caller that is dropped during the wait leaves the queue. Once the lock is
//! held, the body, the guard and the release move into a task on the caller's runtime, and the caller waits for that task.
//!
//! Rejected: spawning the wait as well, because requests of dropped callers would stay in the queue; and running the body
//! on the manager's runtime, where it could block renewals, and would lack the timers and sockets of its own runtime.

use std::{future::Future, panic::resume_unwind};

use tokio::runtime::Handle;
use tracing::{Instrument as _, Span};

use crate::{
    driver::{
        hold::{Admission, Leases},
        reentry,
    },
    error::LockError,
    guard::LockGuard,
    lease::Lease,
    manager::{
        LockManager,
        default_manager::with_locks_of_this_task,
        run::{Finished, Storing},
        wanted_keys::WantedKeys,
    },
};

impl LockManager {
    /// Like `run_wanted`, but with a body that continues when the caller is dropped.
    pub(crate) async fn finish_wanted<F: Future<Output: Send + 'static> + Send + 'static>(
        &self,
        WantedKeys { list, terms }: WantedKeys,
        body: impl FnOnce(Lease) -> F + Send + 'static,
        store: impl Storing<F::Output> + Send + 'static,
        then: impl FnOnce(F::Output, Finished<'_>) -> (F::Output, Option<LockGuard>) + Send + 'static,
    ) -> Result<F::Output, LockError> {
        let runtime = runtime()?;
        for (key, mode) in list.all() {
            if reentry::find(&self.inner.registry, key, *mode)?.is_some() {
                let reason = "this task already holds the key, but `on_drop = finish` runs the body in a task of its own, which does \
                              not hold it, so the call would wait for itself: give one of the two another key, or write `on_drop = \
                              cancel`";
                return Err(LockError::invalid(reason).about(key));
            }
        }
        let hold = match self.acquire_keys(list, terms).await? {
            Admission::Held(hold) => hold,
            Admission::Done(result) => return store.recall(&result),
        };
        let manager = self.clone();
        let run = async move {
            let run = manager.run_under(hold, Vec::new(), terms, body, store, then);
            run.await
        };
        let task = with_locks_of_this_task(reentry::scope(Leases::None, &[], run));
        let ended = runtime.spawn(task.instrument(Span::current())).await;
        ended.unwrap_or_else(|error| match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            Err(_) => Err(LockError::unavailable(
                "the runtime was shut down, and dropped the body before its end",
            )),
        })
    }
}

/// Returns the runtime for the task. It is looked up before the lock is acquired, because without a runtime nothing may be
/// sent.
fn runtime() -> Result<Handle, LockError> {
    Handle::try_current().map_err(|_| {
        LockError::invalid(
            "`on_drop = finish` runs the body as a task of the caller's tokio runtime, but there is none: call the function inside \
            one, or write `on_drop = cancel`",
        )
    })
}
