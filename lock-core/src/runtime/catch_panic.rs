//! Calling code that is not ours: the wakers of the user's executor, and whoever listens to telemetry.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls it. If that panics, it ends here: nothing of ours is undone by it, and nobody else goes without.
pub(crate) fn catch_panic(call: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(call)).is_err() {
        // Whoever listens to this may be the one that panics.
        drop(catch_unwind(|| {
            tracing::error!("a waker, or a listener to telemetry, panicked");
        }));
    }
}
