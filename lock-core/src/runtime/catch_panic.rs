//! Calls to user code: the wakers of the user's executor, and subscribers of telemetry.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    task::Waker,
};

/// Makes the call, and catches a panic. Otherwise the panic would interrupt this crate's work, and other tasks would not be
/// woken.
pub(crate) fn catch_panic(call: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(call)).is_err() {
        // The panic hook or a subscriber may panic while it reports the panic.
        drop(catch_unwind(|| {
            tracing::error!("a waker or a telemetry subscriber panicked");
        }));
    }
}

/// A clone of a task's waker, which a transition may take. A waker is user code, so it is cloned before the mutex is
/// locked, and dropped after the mutex is unlocked.
pub(crate) struct SpareWaker(Option<Waker>);

impl SpareWaker {
    pub(crate) fn new(waker: &Waker) -> Self {
        Self(Some(waker.clone()))
    }

    /// Returns the waker, which a transition may take or exchange under the mutex.
    pub(crate) fn slot(&mut self) -> &mut Option<Waker> {
        &mut self.0
    }
}

impl Drop for SpareWaker {
    fn drop(&mut self) {
        let waker = self.0.take();
        catch_panic(|| drop(waker));
    }
}
