//! A response with a body that is sent after its function has returned, and the lock of that function.
//!
//! A body of a known size is complete when the function returns. Any other body is made while it is sent, at the pace of the
//! client. So it keeps the lock until it has ended, if `max_hold` bounds that time.

use std::collections::BTreeSet;

use crate::{
    guard::LockGuard, lock::context::terms::Terms, options::OnLost, runtime::mutex::Mutex,
};

/// A value of a function, of which a part may be sent after the function has returned.
pub trait SentLater: Sized {
    /// The part that is made while the value is sent.
    fn rest(&mut self) -> Rest;

    /// Keeps the lock until the last part has been made. The value ends with an error when the lease is lost.
    #[must_use]
    fn hold(self, guard: LockGuard) -> Self;
}

/// The part of a value that is made while it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Nothing: its size is known.
    Nothing,
    /// A stream.
    Stream,
    /// Known only after the value has become a response.
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

/// Gives the guard to the value, or returns it to be released now.
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

/// Warns once for each template. The set is bounded by the number of templates in the program.
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
