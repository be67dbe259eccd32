//! A response with a body that is sent after its function has returned, and the lock of that function.
//!
//! A body that is complete needs no lock. Any other body is made while it is sent, at the pace of the client, so it keeps the
//! lock until it has ended, if `max_hold` bounds that time. A size alone proves nothing: a file has one, and is read while it
//! is sent.
//!
//! Rejected: refusing such types, since most bodies are complete; and recognising them by name, since an alias hides it.
//! Instead, method calls on a type of ours decide which values are examined (`SentBy` in `private/mod.rs`).

use crate::{guard::LockGuard, manager::run::Finished};

/// A return value of which a part may be sent after the function has returned.
pub trait SentLater: Sized {
    /// Keeps the lock until the last part has been made, or returns it to be released now. A value that keeps the lock ends with an
    /// error when the lease is lost.
    fn until_sent(self, lock: Finished<'_>) -> (Self, Option<LockGuard>);
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

/// A tuple with status, headers and the like before the body, as axum and poem have them.
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
