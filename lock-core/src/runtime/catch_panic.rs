//! Calling code of the user: the wakers of the user's executor, and subscribers of telemetry.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Makes the call, and catches its panic. A panic interrupts no work of this crate, and the other tasks are still woken.
pub(crate) fn catch_panic(call: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(call)).is_err() {
        // The panic hook or a subscriber may panic while it reports the panic.
        drop(catch_unwind(|| {
            tracing::error!("a waker or a telemetry subscriber panicked");
        }));
    }
}
