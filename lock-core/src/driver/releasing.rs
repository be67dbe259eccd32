//! The future of a task that releases a key.
//!
//! The task polls the first try of the release. If the task is dropped, the manager's executor takes the try over. No task
//! waits for the release of a dropped acquire, so the executor polls that one from the start. All further tries run on the
//! executor (`driver/until_certain.rs`), and the task only waits for the result.

use std::{
    future::Future,
    mem,
    pin::Pin,
    task::{Context as TaskContext, Poll, Waker, ready},
};

use tokio::sync::oneshot;

use crate::{
    backend::{Answered, Reply, RunResult, on_executor::ENDED},
    driver::{release_in_flight::OpenRelease, until_certain::Tries},
    engine::reply::ReleaseOutcome,
    error::{LeaseLost, LockError},
    failure::Failure,
    key::LockKey,
};

/// A release that its task may wait for. Dropping it leaves the release in flight.
///
/// Written by hand to be small, because each of the thousands of tasks that wait for a lock reserves space for one.
#[must_use = "futures do nothing unless polled"]
pub(crate) struct Releasing(Stage);

enum Stage {
    FirstTry(FirstTry),
    /// The executor repeats the release.
    Repeated(oneshot::Receiver<Result<(), LockError>>),
    Known(Box<Result<(), LockError>>),
    Over,
}

/// The first try, which may be polled anywhere.
struct FirstTry {
    answer: Reply<Answered<ReleaseOutcome>>,
    lost: Option<LeaseLost>,
    /// Declared after `answer`, so that it is dropped after the request.
    open: OpenRelease,
}

impl Releasing {
    /// Begins a release, which the first poll sends. `lost` says how the lease was lost before, if it was, and `result` is
    /// the result of a run.
    pub(crate) fn begin(
        open: OpenRelease,
        lost: Option<LeaseLost>,
        result: Option<RunResult>,
    ) -> Self {
        if result.is_some() {
            *open.0.result.lock() = result;
        }
        Self(Stage::FirstTry(FirstTry {
            answer: open.0.try_once(),
            lost,
            open,
        }))
    }

    /// Returns a release that fails: its task has lost the lease, although the server lease stays with other tasks.
    pub(crate) fn lost(key: &LockKey, reason: LeaseLost) -> Self {
        let lost = LockError::lost(key, reason, None);
        Self(Stage::Known(Box::new(Err(lost))))
    }

    /// Sends the request now, so that it precedes every later request.
    pub(crate) fn send(&mut self) {
        let noop = &mut TaskContext::from_waker(Waker::noop());
        if let Poll::Ready(result) = Pin::new(&mut *self).poll(noop) {
            self.0 = Stage::Known(Box::new(result));
        }
    }
}

impl FirstTry {
    /// Evaluates the reply. If further tries are needed, the executor makes them.
    fn end(self, answer: Result<Answered<ReleaseOutcome>, Failure>) -> Stage {
        let (open, lost) = (self.open, self.lost);
        let executor = open.0.context.executor.clone();
        let mut tries = Tries::new(open.0.clone());
        if let Some(outcome) = tries.read(answer) {
            if !tries.is_over() {
                executor.start(tries.repeat(|_| ()));
            }
            return Stage::Known(Box::new(open.verdict(lost, outcome)));
        }
        let (sender, receiver) = oneshot::channel();
        executor.start(tries.repeat(move |outcome| {
            // The receiver is gone if the task was dropped.
            drop(sender.send(open.verdict(lost, outcome)));
        }));
        Stage::Repeated(receiver)
    }
}

impl Future for Releasing {
    type Output = Result<(), LockError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<Self::Output> {
        if let Stage::FirstTry(first) = &mut self.0 {
            let answer = ready!(first.answer.as_mut().poll(context));
            if let Stage::FirstTry(first) = mem::replace(&mut self.0, Stage::Over) {
                self.0 = first.end(answer);
            }
        }
        if let Stage::Repeated(result) = &mut self.0 {
            let result = ready!(Pin::new(result).poll(context));
            self.0 = Stage::Over;
            // The sender is dropped only if the executor's runtime has ended.
            let none = |_| Err(LockError::unavailable(ENDED));
            return Poll::Ready(result.unwrap_or_else(none));
        }
        match mem::replace(&mut self.0, Stage::Over) {
            Stage::Known(result) => Poll::Ready(*result),
            Stage::FirstTry(_) | Stage::Repeated(_) | Stage::Over => Poll::Pending,
        }
    }
}

impl Drop for Releasing {
    fn drop(&mut self) {
        // In any other stage, the executor already has the release.
        if let Stage::FirstTry(mut first) = mem::replace(&mut self.0, Stage::Over) {
            let executor = first.open.0.context.executor.clone();
            // Not as a `Releasing`: an executor that has ended drops this future, whose drop would start it again.
            executor.start_patiently(async move {
                let answer = first.answer.as_mut().await;
                drop(first.end(answer));
            });
        }
    }
}
