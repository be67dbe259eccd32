//! A response whose body is sent after its function has returned, and the lock of that function.
//!
//! A body of a known size is there when the function returns. Any other is made while it is sent, at the pace of the client. So it
//! keeps the lock until it has ended, if `max_hold` bounds that.

use std::collections::BTreeSet;

use crate::{
    guard::LockGuard,
    options::{OnLost, Terms},
    runtime::mutex::Mutex,
};

/// A value of a function, of which a part may be sent after the function has returned.
pub trait SentLater: Sized {
    /// What is left to be made while it is sent.
    fn rest(&mut self) -> Rest;

    /// Keeps the lock until the last part has been made. It ends with an error when the lease is lost.
    #[must_use]
    fn hold(self, guard: LockGuard) -> Self;
}

/// What of a value is made while it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Nothing: its size is known.
    Nothing,
    /// A stream.
    Stream,
    /// Known only once it is a response.
    NotKnownYet,
}

impl<T: SentLater, E> SentLater for Result<T, E> {
    fn rest(&mut self) -> Rest {
        self.as_mut().map_or(Rest::Nothing, T::rest)
    }

    fn hold(self, guard: LockGuard) -> Self {
        self.map(|value| value.hold(guard))
    }
}

/// Has the value keep the lock, or returns the guard to be released now.
pub(crate) fn until_sent<T: SentLater>(
    mut value: T,
    guard: LockGuard,
    terms: &Terms,
) -> (T, Option<LockGuard>) {
    let is_bounded = terms.max_hold.is_some();
    match value.rest() {
        Rest::Stream | Rest::NotKnownYet if is_bounded && terms.on_lost == OnLost::Cancel => {
            return (value.hold(guard), None);
        }
        Rest::Stream if !is_bounded => warn(&guard),
        _ => {}
    }
    (value, Some(guard))
}

/// Warns of each template once: there are as many as the program has.
fn warn(guard: &LockGuard) {
    static WARNED: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let key = guard.key();
    if WARNED.lock().insert(key.template().unwrap_or_default()) {
        tracing::warn!(
            key = %key.shown(),
            "the lock is released before the body of its response has been sent: set `max_hold`, and it is kept until then, at most \
             for that time; or hold it by `LockGuard::hold_during`"
        );
    }
}
