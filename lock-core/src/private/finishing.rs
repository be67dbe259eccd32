//! Annotated functions with `on_drop = finish`: the body goes on as a task of its own when the caller is dropped.

use std::{future::Future, pin::Pin};

use crate::{
    error::LockError,
    guard::LockGuard,
    lock::key_state::terms::Terms,
    manager::release_now,
    private::{CallEntry, Finished, Step, WantedLock, first_step},
};

/// A function that goes on when its caller is dropped.
#[derive(Debug)]
pub struct WithoutCaller<F>(pub(super) F);

/// What such a function needs: it can move to another thread.
// A trait of the wrapper, since of a future itself the compiler reports `Send`, without these words.
#[diagnostic::on_unimplemented(
    message = "with `on_drop = finish`, the body runs as a task of its own, and this one is not `Send`",
    label = "a value that is not `Send` is used across an `.await`, or is an argument",
    note = "write `on_drop = cancel`: then the body is dropped with its caller, and may have such values",
    note = "to see which value it is, write `on_drop = cancel`, and pass a call of the function to `tokio::spawn`"
)]
pub trait GoesOn<T> {
    /// Puts the function in a box, since it moves into its task in the midst of its run.
    fn boxed(self) -> Pin<Box<dyn Future<Output = T> + Send>>;
}

#[diagnostic::do_not_recommend]
impl<T, F: Future<Output = T> + Send + 'static> GoesOn<T> for WithoutCaller<F> {
    fn boxed(self) -> Pin<Box<dyn Future<Output = T> + Send>> {
        Box::pin(self.0)
    }
}

/// As [`locked`](super::locked), with a body that goes on when the caller is dropped.
pub fn finishing<T, F>(
    entry: CallEntry<WantedLock>,
    on_error: impl FnOnce(LockError) -> T,
    function: F,
) -> Pin<Box<impl Future<Output = T>>>
where
    T: Send + 'static,
    F: Future<Output = T>,
    WithoutCaller<F>: GoesOn<T>,
{
    finishing_then(entry, on_error, function, release_now)
}

/// As [`locked_until_sent`](super::locked_until_sent), with a body that goes on when the caller is dropped.
pub fn finishing_until_sent<T, F>(
    entry: CallEntry<WantedLock>,
    on_error: impl FnOnce(LockError) -> T,
    function: F,
    until_sent: impl FnOnce(T, Finished<'_>) -> (T, Option<LockGuard>) + Send + 'static,
) -> Pin<Box<impl Future<Output = T>>>
where
    T: Send + 'static,
    F: Future<Output = T>,
    WithoutCaller<F>: GoesOn<T>,
{
    let then = |value, guard, terms: &Terms| until_sent(value, Finished { guard, terms });
    finishing_then(entry, on_error, function, then)
}

fn finishing_then<T, F>(
    entry: CallEntry<WantedLock>,
    on_error: impl FnOnce(LockError) -> T,
    function: F,
    then: impl FnOnce(T, LockGuard, &Terms) -> (T, Option<LockGuard>) + Send + 'static,
) -> Pin<Box<impl Future<Output = T>>>
where
    T: Send + 'static,
    F: Future<Output = T>,
    WithoutCaller<F>: GoesOn<T>,
{
    Box::pin(async move {
        let mut function = WithoutCaller(function).boxed();
        let WantedLock {
            manager,
            keys,
            options,
        } = match first_step(&mut function, &entry).await {
            Step::Wants(request) => request,
            Step::Returned(value) => return value,
        };
        let enter = move |lease| {
            entry.admit(lease);
            function
        };
        let wanted = manager.and_then(|manager| {
            let wanted = manager.wanted(keys.in_modes(&options), &options)?;
            Ok((manager, wanted))
        });
        let result = match wanted {
            Ok((manager, wanted)) => manager.finish_then(wanted, enter, then).await,
            Err(error) => Err(error),
        };
        result.unwrap_or_else(on_error)
    })
}
