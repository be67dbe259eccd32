//! The requirements for return types that must express a lock failure.

use crate::error::{FromLockError, LockError, Skipped};

/// The requirement of `on_busy = skip` without `on_error` for the return type. It is a single trait, so that the compiler
/// reports one error for a type that implements neither of the two.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot express both that the body was skipped and that the lock failed",
    label = "`on_busy = skip` needs a `Result` of `()` or `Option<_>` here",
    note = "return `Result<(), E>` or `Result<Option<_>, E>` where `E: From<lock_core::LockError>`",
    note = "or return `()` or `Option<_>`, and write `on_error = |error| …` for a lock that is not busy but unavailable"
)]
pub trait SkipOrFail {
    /// Returns the value for a skipped body if the lock is busy, and the error in every other case.
    fn skip_or_fail(error: LockError) -> Self;

    /// Returns the conversion, like the function of the same name in [`FromLockError`].
    fn __conversion() -> fn(LockError) -> Self
    where
        Self: Sized,
    {
        Self::skip_or_fail
    }
}

#[diagnostic::do_not_recommend]
impl<T: Skipped + FromLockError> SkipOrFail for T {
    fn skip_or_fail(error: LockError) -> Self {
        if error.is_busy() {
            T::skipped()
        } else {
            T::from_lock_error(error)
        }
    }
}

/// The requirement of `-> impl IntoResponse`: the resulting response must be able to represent a lock failure.
#[diagnostic::on_unimplemented(
    message = "the response of this `impl IntoResponse` cannot represent a lock failure",
    label = "becomes a `{Self}`, which does not implement `FromLockError`",
    note = "enable the feature of `lock-core` with the name of the framework: `axum` (for axum 0.8, with axum-core 0.5) or \
            `poem` (for poem 3)",
    note = "if it is enabled, the program may have two versions of the framework: check with `cargo tree -d`",
    note = "or write `on_error = |error| …` in the attribute, with any value that implements the trait"
)]
pub trait Answer {
    /// Converts the failure.
    fn answer(error: LockError) -> Self;
}

#[diagnostic::do_not_recommend]
impl<T: FromLockError> Answer for T {
    fn answer(error: LockError) -> Self {
        Self::from_lock_error(error)
    }
}

/// The response to a failed lock in actix. Without the feature, nothing implements the trait.
#[cfg_attr(
    not(feature = "actix"),
    diagnostic::on_unimplemented(
        message = "this `impl Responder` cannot represent a lock failure",
        label = "is actix's only with the `actix` feature of `lock-core`",
        note = "enable the `actix` feature of `lock-core`, which supports actix-web 4",
        note = "or write `on_error = |error| …` in the attribute, with a value of the same type as the body's"
    )
)]
pub trait ActixAnswer {
    /// Converts the failure.
    fn answer(error: LockError) -> Self;
}

pub use responder::*;

/// The functions that make the return value of an annotated `-> impl Responder`.
#[cfg(feature = "actix")]
mod responder {
    use actix_web::{HttpResponse, Responder};

    use super::ActixAnswer;
    use crate::error::LockError;
    pub use crate::integrations::actix::Responding;

    /// Wraps the body's value.
    pub fn responder<R, F>(body: R) -> Responding<R, F> {
        Responding::Body(body)
    }

    /// Wraps the body's value in a `Result`.
    pub fn responder_in_result<R>(body: R) -> Responding<R, HttpResponse> {
        Responding::Body(body)
    }

    /// Wraps the value of `on_error`.
    pub fn responder_on_error<R, F: Responder>(value: F) -> Responding<R, F> {
        Responding::Failed(value)
    }

    impl<R> ActixAnswer for Responding<R, HttpResponse> {
        fn answer(error: LockError) -> Self {
            Self::Failed(error.into())
        }
    }
}

/// Stand-ins for these functions without the `actix` feature, where the value of `on_error` must have the type of the
/// body's.
#[cfg(not(feature = "actix"))]
mod responder {
    /// Passes the value of the body or of `on_error` through.
    pub fn responder<R>(value: R) -> R {
        value
    }

    pub use self::{responder as responder_in_result, responder as responder_on_error};
}
