//! Waking tasks, which runs code of the user's executor.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Wakes somebody. If that panics, it ends here: nothing of ours is undone by it, and nobody else goes without.
pub(crate) fn safely(wake: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(wake)).is_err() {
        tracing::error!("waking a task panicked");
    }
}
