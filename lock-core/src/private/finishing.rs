//! Annotated functions with `on_drop = finish`: the body goes on as a task of its own when the caller is dropped.

use std::{future::Future, pin::Pin};

use crate::{
    error::LockError,
    guard::LockGuard,
    manager::run::Finished,
    private::{Call, CallEntry, WantedLock},
};

/// A function that goes on when its caller is dropped.
#[derive(Debug)]
pub struct WithoutCaller<F>(pub(crate) F);

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

/// As [`locked`](crate::private::locked), with a body that goes on when the caller is dropped.
pub fn finishing<T, F>(
    entry: CallEntry<WantedLock>,
    function: F,
    on_error: impl FnOnce(LockError) -> T,
    then: impl FnOnce(T, Finished<'_>) -> (T, Option<LockGuard>) + Send + 'static,
) -> Call<F, impl Future<Output = T>>
where
    T: Send + 'static,
    F: Future<Output = T>,
    WithoutCaller<F>: GoesOn<T>,
{
    Call::of(async move {
        let function = WithoutCaller(function).boxed();
        entry
            .drive(on_error, function, |wanted, entry, function| async move {
                let (keys, manager) = wanted.0?;
                manager
                    .finish_wanted(keys, move |lease| entry.admit(lease, function), then)
                    .await
            })
            .await
    })
}
