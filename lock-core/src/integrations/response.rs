//! A response with a body that is sent after its function has returned, and the lock of that function.
//!
//! A body that is complete needs no lock. Any other body is made while it is sent, at the pace of the client. So it keeps the lock
//! until it has ended, if `max_hold` bounds that time. A size alone says nothing: a file has one, and is read while it is sent.
//!
//! Rejected: to refuse such types, since most bodies are complete, and to go by their names, since an alias hides them. Method
//! calls on a type of ours decide which values are looked at (`SentBy` in `private/mod.rs`).

use std::collections::BTreeSet;

use crate::{
    guard::LockGuard, key::LockKey, lock::key_state::terms::Terms, options::OnLost,
    runtime::mutex::Mutex,
};

/// A value of a function, of which a part may be sent after the function has returned.
pub trait SentLater: Sized {
    /// Returns the value, and the part of it that is made while it is sent.
    fn rest(self) -> (Self, Rest);

    /// Keeps the lock until the last part has been made. The value ends with an error when the lease is lost.
    #[must_use]
    fn hold(self, guard: LockGuard) -> Self;

    /// Notes that the lock has been released. A value that is [`Rest::NotKnownYet`] warns if it becomes a stream.
    #[must_use]
    fn released(self, _: ReleasedLock) -> Self {
        self
    }
}

/// The part of a value that is made while it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Nothing: it is complete.
    Nothing,
    /// A stream.
    Stream,
    /// Known only after the value has become a response.
    NotKnownYet,
}

/// A lock that was released before the value was sent.
#[derive(Debug)]
pub struct ReleasedLock(LockKey);

impl ReleasedLock {
    /// Warns once for each template. The set is bounded by the number of templates in the program.
    pub(super) fn warn(&self) {
        static WARNED: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
        let Self(key) = self;
        if WARNED.lock().insert(key.template().unwrap_or_default()) {
            tracing::warn!(
                key = %key.shown(),
                "the lock is released before the body of its response has been sent: set `max_hold`, without \
                 `on_lost = continue`, and it is kept until then, at most for that time; or hold it by \
                 `LockGuard::hold_during`"
            );
        }
    }
}

/// Gives the guard to the value, or returns it to be released now.
pub(crate) fn until_sent<T: SentLater>(
    value: T,
    guard: LockGuard,
    terms: &Terms,
) -> (T, Option<LockGuard>) {
    let (value, rest) = value.rest();
    if rest == Rest::Nothing {
        return (value, Some(guard));
    }
    if terms.max_hold.is_some() && terms.on_lost == OnLost::Cancel {
        return (value.hold(guard), None);
    }
    let released = ReleasedLock(guard.key().clone());
    if rest == Rest::Stream {
        released.warn();
        return (value, Some(guard));
    }
    (value.released(released), Some(guard))
}

impl<T: SentLater, E> SentLater for Result<T, E> {
    fn rest(self) -> (Self, Rest) {
        match self {
            Ok(value) => {
                let (value, rest) = value.rest();
                (Ok(value), rest)
            }
            Err(error) => (Err(error), Rest::Nothing),
        }
    }

    fn hold(self, guard: LockGuard) -> Self {
        self.map(|value| value.hold(guard))
    }

    fn released(self, released: ReleasedLock) -> Self {
        self.map(|value| value.released(released))
    }
}

impl<T: SentLater> SentLater for Option<T> {
    fn rest(self) -> (Self, Rest) {
        self.map_or((None, Rest::Nothing), |value| {
            let (value, rest) = value.rest();
            (Some(value), rest)
        })
    }

    fn hold(self, guard: LockGuard) -> Self {
        self.map(|value| value.hold(guard))
    }

    fn released(self, released: ReleasedLock) -> Self {
        self.map(|value| value.released(released))
    }
}

/// Status, headers and the like before the body, as axum and poem have them.
macro_rules! behind {
    ($($part:ident)+) => {
        impl<$($part,)+ T: SentLater> SentLater for ($($part,)+ T) {
            #[expect(non_snake_case, reason = "a part has the name of its type")]
            fn rest(self) -> (Self, Rest) {
                let ($($part,)+ value) = self;
                let (value, rest) = value.rest();
                (($($part,)+ value), rest)
            }

            #[expect(non_snake_case, reason = "a part has the name of its type")]
            fn hold(self, guard: LockGuard) -> Self {
                let ($($part,)+ value) = self;
                ($($part,)+ value.hold(guard))
            }

            #[expect(non_snake_case, reason = "a part has the name of its type")]
            fn released(self, released: ReleasedLock) -> Self {
                let ($($part,)+ value) = self;
                ($($part,)+ value.released(released))
            }
        }
    };
}

behind!(A);
behind!(A B);
behind!(A B C);
behind!(A B C D);
