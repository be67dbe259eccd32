//! Requests that run where the manager's work runs.

use std::future::Future;

use crate::{backend::Reply, failure::Failure, runtime::executor::Executor};

/// The failure of a request that outlives its runtime.
pub(crate) const ENDED: &str = "the runtime that the request ran on has ended";

/// Runs a request where the manager's work runs. The future is boxed, so that the caller's future, which often completes without
/// it, does not have to contain its steps.
pub(crate) fn on_the_manager<T: Send + 'static>(
    executor: &Executor,
    request: impl Future<Output = Result<T, Failure>> + Send + 'static,
) -> Reply<T> {
    let reply = executor.run(request);
    Box::pin(async move {
        let none = || Err(Failure::no_reply(ENDED));
        reply.await.unwrap_or_else(none)
    })
}
