//! What the output of `#[run_once]` calls.

use std::{
    error::Error,
    future::Future,
    pin::{Pin, pin},
};

use super::{CallEntry, GoesOn, Scoped, Step, WithoutCaller, first_step};
pub use crate::once::{OnceOptions, Remembering};
use crate::{
    error::LockError,
    key::{IntoLockKey, LockKey},
    lease::Lease,
    manager::{LockManager, run_once::OnceCall},
    once::{Remember, Remembered},
};

/// The request for a run, or for the result of one.
#[derive(Debug)]
pub struct WantedRun {
    manager: Result<LockManager, LockError>,
    key: LockKey,
    options: OnceOptions,
}

impl CallEntry<WantedRun> {
    /// Waits until this call is the one that runs the body. What follows in the same future is the body.
    pub async fn acquire_once(
        self,
        manager: Result<LockManager, LockError>,
        key: impl IntoLockKey,
        options: OnceOptions,
    ) -> Lease {
        let wanted = WantedRun {
            manager,
            key: key.into_lock_key(),
            options,
        };
        self.admission(wanted).await
    }
}

/// Shows the compiler that the value of the function is remembered. It is the only place that does.
#[must_use]
pub const fn remembered<T: Remember>() -> Remembering<T> {
    Remembering::NEW
}

/// Runs an annotated function once.
pub fn once<T, F>(
    entry: CallEntry<WantedRun>,
    by: Remembering<T>,
    on_error: impl FnOnce(LockError) -> T,
    function: F,
) -> Pin<Box<impl Future<Output = T>>>
where
    F: Future<Output = T>,
{
    Box::pin(async move {
        let mut function = Scoped(pin!(Some(function)));
        let wanted = match first_step(&mut function, &entry).await {
            Step::Wants(request) => request,
            Step::Returned(value) => return value,
        };
        let WantedRun { key, options, .. } = wanted;
        let enter = |lease| {
            entry.admit(lease);
            function
        };
        let run = async {
            match wanted.manager?.begin_once(&by, key, &options).await? {
                OnceCall::Done(value) => Ok(value),
                OnceCall::Runs(run) => run.run(&by, enter).await,
            }
        };
        run.await.unwrap_or_else(on_error)
    })
}

/// The same, with a body that goes on when the caller is dropped.
pub fn once_finishing<T, F>(
    entry: CallEntry<WantedRun>,
    by: Remembering<T>,
    on_error: impl FnOnce(LockError) -> T,
    function: F,
) -> Pin<Box<impl Future<Output = T>>>
where
    T: Send + 'static,
    F: Future<Output = T>,
    WithoutCaller<F>: GoesOn<T>,
{
    Box::pin(async move {
        let mut function = WithoutCaller(function).boxed();
        let wanted = match first_step(&mut function, &entry).await {
            Step::Wants(request) => request,
            Step::Returned(value) => return value,
        };
        let WantedRun { key, options, .. } = wanted;
        let enter = move |lease| {
            entry.admit(lease);
            function
        };
        let result = match wanted.manager {
            Ok(manager) => manager.finish_once(by, key, &options, enter).await,
            Err(error) => Err(error),
        };
        result.unwrap_or_else(on_error)
    })
}

/// A response in a `Result`, which is remembered as the response is. A `Result` itself is remembered by serde.
#[derive(Debug)]
pub struct InResult<R, E>(pub Result<R, E>);

impl<R: Remember, E> Remember for InResult<R, E> {
    fn remember(self) -> (Self, Remembered) {
        match self.0 {
            Ok(response) => {
                let (response, remembered) = response.remember();
                (Self(Ok(response)), remembered)
            }
            Err(error) => (Self(Err(error)), Remembered::Nothing),
        }
    }

    fn recall(bytes: &[u8]) -> Result<Self, Box<dyn Error + Send + Sync>> {
        Ok(Self(Ok(R::recall(bytes)?)))
    }
}
