//! The lock of a response that is sent after its handler has returned: the body keeps it, or it is released with a warning.

use std::collections::BTreeSet;

use crate::{
    guard::LockGuard, key::LockKey, manager::run::Finished, options::OnLost, runtime::mutex::Mutex,
};

/// Warns, once for each template, that a lock is released before the value has been sent.
pub(super) fn warn_of_release(key: &LockKey) {
    warn_once(
        key,
        "the lock is released before the body of its response has been sent: to keep it until then, set `max_hold`, which \
         bounds that time, without `on_lost = continue`; or hold the lock with `LockGuard::hold_during`",
    );
}

fn warn_once(key: &LockKey, warning: &'static str) {
    /// The templates and the warnings already logged for them. Bounded by the number of templates in the program.
    static WARNED: Mutex<BTreeSet<(&str, &str)>> = Mutex::new(BTreeSet::new());
    let template = key.template().unwrap_or_default();
    if WARNED.lock().insert((template, warning)) {
        tracing::warn!(key = %key.shown(), "{warning}");
    }
}

impl Finished<'_> {
    /// Returns the guard of a response that upgrades its connection, which must be released now. Logs a warning for each
    /// template. The framework runs the upgraded connection in a task of its own, to which the response cannot pass a
    /// guard, so the lock is not kept even with `max_hold`.
    #[cfg(any(feature = "axum", feature = "poem"))]
    pub(super) fn upgraded(self) -> LockGuard {
        warn_once(
            self.guard.key(),
            "the lock is released with the response that upgrades the connection (101), and does not protect the work on \
             that connection: acquire it inside the upgraded task, with `LockManager::run`",
        );
        self.guard
    }

    /// Returns `true` if a value that is produced while it is sent may keep the lock, which requires a bound on the time.
    pub(super) fn may_be_kept(&self) -> bool {
        self.terms.max_hold.is_some() && self.terms.on_lost == OnLost::Cancel
    }

    /// Gives the guard to a stream, or logs a warning and returns the guard, which must then be released now.
    pub(super) fn until_end<T>(
        self,
        stream: T,
        hold: impl FnOnce(T, LockGuard) -> T,
    ) -> (T, Option<LockGuard>) {
        if self.may_be_kept() {
            return (hold(stream, self.guard), None);
        }
        warn_of_release(self.guard.key());
        (stream, Some(self.guard))
    }
}
