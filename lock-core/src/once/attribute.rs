//! The items that the output of `#[run_once]` calls.

use std::error::Error;

pub use crate::once::{Keeping, OnceOptions, Remembering};
use crate::{
    error::{FromLockError, LockError},
    key::IntoLockKey,
    lease::Lease,
    manager::LockManager,
    once::{Remember, Remembered},
    private::CallEntry,
};

impl CallEntry<Keeping> {
    /// Waits until this call is the one that runs the body. The rest of the same future is the body.
    pub async fn acquire_once(
        self,
        manager: Result<LockManager, LockError>,
        key: impl IntoLockKey,
        options: OnceOptions,
    ) -> Lease {
        let key = key.into_lock_key();
        let wanted = manager.and_then(|manager| Ok((manager.wanted_run(key, &options)?, manager)));
        self.admission(wanted).await
    }
}

/// Shows the compiler that the value of the function is remembered. No other item does so.
#[must_use]
pub const fn remembered<T: Remember>() -> Remembering<T> {
    Remembering::NEW
}

/// The requirement of a run without `on_error` on a return type other than a `Result`. It is a single trait, so that a type
/// that lacks both is reported once.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be remembered for later callers, or cannot represent a lock failure",
    label = "this value is given to every caller, and to a caller whose lock failed",
    note = "return `Result<T, E>` where `T: serde::Serialize + serde::de::DeserializeOwned` and `E: From<lock_core::LockError>`",
    note = "in a handler, return `impl IntoResponse`, `Result<Json<T>, E>` or the response of axum or poem, with the feature \
            of `lock-core` of the same name",
    note = "or implement `lock_core::Remember` and `lock_core::FromLockError` for a type of your own"
)]
pub trait RememberOrFail: Remember + FromLockError {}

#[diagnostic::do_not_recommend]
impl<T: Remember + FromLockError> RememberOrFail for T {}

/// Like [`remembered`], but also returns the conversion of a lock failure.
#[must_use]
pub fn remembered_or_failed<T: RememberOrFail>() -> (Remembering<T>, fn(LockError) -> T) {
    (Remembering::NEW, T::from_lock_error)
}

/// A response in a `Result`, which is remembered like the response itself. A `Result` alone is remembered by serde.
#[derive(Debug)]
pub struct InResult<R, E>(pub Result<R, E>);

impl<R: Remember, E> Remember for InResult<R, E> {
    fn remember(self) -> (Self, Remembered) {
        match self.0 {
            Ok(response) => {
                let (response, remembered) = response.remember();
                (Self(Ok(response)), remembered)
            }
            Err(error) => (Self(Err(error)), Remembered::Nothing),
        }
    }

    fn recall(bytes: &[u8]) -> Result<Self, Box<dyn Error + Send + Sync>> {
        Ok(Self(Ok(R::recall(bytes)?)))
    }
}
