//! Responses whose body is sent after the function has returned, and the lock of that function.
//!
//! A complete body needs no lock. Any other body is produced while it is sent, at the pace of the client, so it keeps the
//! lock until it has ended, if `max_hold` bounds that time. A known size does not make a body complete: a file has one, and
//! is read while it is sent.
//!
//! Rejected: refusing the types of such responses, since most bodies are complete; and recognising them by name, since an
//! alias would hide them. Instead, method resolution on a type of ours decides which values are examined (`SentBy` in
//! `private/mod.rs`).

use crate::{guard::LockGuard, manager::run::Finished};

/// A return value that may be sent in part after the function has returned.
pub trait SentLater: Sized {
    /// Keeps the lock until the last part has been produced, or returns the guard, which must then be released now. A value
    /// that keeps the lock ends with an error when the lease is lost.
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

/// Handles tuples with parts such as the status and headers before the body, as in axum and poem.
macro_rules! behind {
    ($($part:ident)+) => {
        impl<$($part,)+ T: SentLater> SentLater for ($($part,)+ T) {
            #[expect(non_snake_case, reason = "each part is named after its type parameter")]
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
