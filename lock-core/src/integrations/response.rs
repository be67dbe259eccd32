//! A response with a body that is sent after its function has returned, and the lock of that function.
//!
//! A body that is complete needs no lock. Any other body is made while it is sent, at the pace of the client. So it keeps the lock
//! until it has ended, if `max_hold` bounds that time. A size alone says nothing: a file has one, and is read while it is sent.
//!
//! Rejected: to refuse such types, since most bodies are complete, and to go by their names, since an alias hides them. Method
//! calls on a type of ours decide which values are looked at (`SentBy` in `private/mod.rs`).

use std::collections::BTreeSet;

use crate::{
    guard::LockGuard, key::LockKey, manager::Finished, options::OnLost, runtime::mutex::Mutex,
};

/// A value of a function, of which a part may be sent after the function has returned.
pub trait SentLater: Sized {
    /// Keeps the lock until the last part has been made, or returns it to be released now. A value that keeps the lock ends with an
    /// error when the lease is lost.
    fn until_sent(self, lock: Finished<'_>) -> (Self, Option<LockGuard>);
}

/// Warns that a lock is released before the value was sent: once for each template. The set is bounded by the number of templates in
/// the program.
pub(super) fn warn_of_release(key: &LockKey) {
    static WARNED: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    if WARNED.lock().insert(key.template().unwrap_or_default()) {
        tracing::warn!(
            key = %key.shown(),
            "the lock is released before the body of its response has been sent: set `max_hold`, without \
             `on_lost = continue`, and it is kept until then, at most for that time; or hold it by \
             `LockGuard::hold_during`"
        );
    }
}

impl Finished<'_> {
    /// Whether a value that is made while it is sent may keep the lock: only for a time that has a bound.
    pub(super) fn may_be_kept(&self) -> bool {
        self.terms.max_hold.is_some() && self.terms.on_lost == OnLost::Cancel
    }

    /// Gives the guard to a stream, or returns it to be released now, with a warning.
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

impl<T: SentLater, E> SentLater for Result<T, E> {
    fn until_sent(self, lock: Finished<'_>) -> (Self, Option<LockGuard>) {
        match self {
            Ok(value) => {
                let (value, guard) = value.until_sent(lock);
                (Ok(value), guard)
            }
            Err(error) => (Err(error), Some(lock.guard)),
        }
    }
}

impl<T: SentLater> SentLater for Option<T> {
    fn until_sent(self, lock: Finished<'_>) -> (Self, Option<LockGuard>) {
        let (value, guard) = self.ok_or(()).until_sent(lock);
        (value.ok(), guard)
    }
}

/// Status, headers and the like before the body, as axum and poem have them.
macro_rules! behind {
    ($($part:ident)+) => {
        impl<$($part,)+ T: SentLater> SentLater for ($($part,)+ T) {
            #[expect(non_snake_case, reason = "a part has the name of its type")]
            fn until_sent(self, lock: Finished<'_>) -> (Self, Option<LockGuard>) {
                let ($($part,)+ value) = self;
                let (value, guard) = value.until_sent(lock);
                (($($part,)+ value), guard)
            }
        }
    };
}

behind!(A);
behind!(A B);
behind!(A B C);
behind!(A B C D);
