//! Calls to the user's code: the wakers of the user's executor, and subscribers of telemetry.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    task::Waker,
};

/// Makes the call, and catches its panic. A panic then interrupts no work of this crate, and the other tasks are still woken.
pub(crate) fn catch_panic(call: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(call)).is_err() {
        // The panic hook or a subscriber may panic while it reports the panic.
        drop(catch_unwind(|| {
            tracing::error!("a waker or a telemetry subscriber panicked");
        }));
    }
}

/// A clone of a task's waker, which a transition may take. A waker is the user's code, so it is cloned before the mutex is
/// taken, and dropped after the mutex is free.
pub(crate) struct SpareWaker(Option<Waker>);

impl SpareWaker {
    pub(crate) fn new(waker: &Waker) -> Self {
        Self(Some(waker.clone()))
    }

    /// Returns the waker, to be taken or exchanged under the mutex.
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
