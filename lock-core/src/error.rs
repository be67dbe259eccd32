//! What can go wrong, one variant for each decision that a caller can take.

use std::{error::Error, fmt, io, sync::Arc, time::Duration};

use crate::key::{Busy, LockKey};

/// Why a lock was not acquired, or is no longer held.
///
/// | variant | means | a caller would |
/// | --- | --- | --- |
/// | [`Busy`](Self::Busy) | another holder has it: normal | answer 409, or try again later |
/// | [`Lost`](Self::Lost) | this process held it and does not any more | stop, and undo or re-check what was done |
/// | [`Unavailable`](Self::Unavailable) | the backend did not reply or cannot serve; the state is unknown | answer 503 |
/// | [`Invalid`](Self::Invalid) | the request itself is wrong | mend the program or its configuration |
/// | [`NotConfigured`](Self::NotConfigured) | no manager was given | call [`set_global`](crate::set_global) |
///
/// No variant prints an owner token or a password.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum LockError {
    /// Another holder has the lock, or other waiters are before this one.
    Busy {
        /// What is locked.
        key: LockKey,
        /// For how long the holder's lease is known to run unless it is renewed or released. `None` if the lease never ends by
        /// itself, because another client took the key without an expiry. Then only
        /// [`LockManager::force_release`](crate::LockManager::force_release) frees the lock.
        retry_after: Option<Duration>,
    },
    /// The lease ended before it was released.
    Lost {
        /// What was locked.
        key: LockKey,
        /// How it ended.
        reason: LeaseLost,
    },
    /// The backend did not reply, or replied that it cannot serve now. Whether the lock is free is unknown.
    Unavailable {
        /// What was to be locked; `None` where no key is involved, as while connecting.
        key: Option<LockKey>,
        /// What the backend or the connection reported.
        source: Arc<dyn Error + Send + Sync>,
    },
    /// The request cannot succeed as it is: a wrong value, a wrong url, a key that holds something else.
    Invalid {
        /// What was to be locked; `None` where no key is involved.
        key: Option<LockKey>,
        /// What is wrong and what to write instead.
        reason: Arc<str>,
    },
    /// No manager: neither `locks = …`, nor [`with_locks`](crate::with_locks), nor [`set_global`](crate::set_global).
    NotConfigured,
}

impl LockError {
    /// Returns the key that the error is about, if it is about one.
    #[must_use]
    pub fn key(&self) -> Option<&LockKey> {
        match self {
            Self::Busy { key, .. } | Self::Lost { key, .. } => Some(key),
            Self::Unavailable { key, .. } | Self::Invalid { key, .. } => key.as_ref(),
            Self::NotConfigured => None,
        }
    }

    /// Returns what holds a lock that is [`Busy`](Self::Busy), as far as the call knew without an extra request.
    #[must_use]
    pub fn held_by(&self) -> Option<HeldBy> {
        match self {
            Self::Busy { key, .. } => key.busy().held_by,
            _ => None,
        }
    }

    /// Returns whether another holder has the lock: the one failure that is part of normal work.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Busy { .. })
    }

    pub(crate) fn busy(key: &LockKey, retry_after: Option<Duration>, busy: Busy) -> Self {
        Self::Busy {
            key: key.that_is_busy(busy),
            retry_after,
        }
    }

    pub(crate) fn invalid(reason: impl Into<Arc<str>>) -> Self {
        Self::Invalid {
            key: None,
            reason: reason.into(),
        }
    }

    pub(crate) fn unavailable(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Unavailable {
            key: None,
            source: Arc::from(source.into()),
        }
    }

    /// Adds the key to an error that has none.
    pub(crate) fn about(mut self, about: &LockKey) -> Self {
        if let Self::Unavailable { key, .. } | Self::Invalid { key, .. } = &mut self {
            key.get_or_insert_with(|| about.clone());
        }
        self
    }
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy {
                key,
                retry_after: Some(_),
            } => {
                write!(f, "the lock `{}` is busy", key.shown())?;
                let held_by = key.busy().held_by;
                held_by.map_or(Ok(()), |held_by| write!(f, ": {held_by}"))
            }
            Self::Busy {
                key,
                retry_after: None,
            } => write!(
                f,
                "the lock `{}` is busy and has no expiry: another client took it without one; \
                 `force_release` frees it",
                key.shown()
            ),
            Self::Lost { key, reason } => write!(f, "the lock `{}` was lost: {reason}", key.shown()),
            Self::Unavailable { key: Some(key), .. } => {
                write!(f, "the lock `{}` is unavailable: no usable answer from the backend", key.shown())
            }
            Self::Unavailable { key: None, .. } => f.write_str("the lock backend is unavailable"),
            Self::Invalid {
                key: Some(key),
                reason,
            } => write!(f, "the lock `{}` cannot be used: {reason}", key.shown()),
            Self::Invalid { key: None, reason } => f.write_str(reason),
            Self::NotConfigured => f.write_str(
                "no lock manager: call `lock_core::set_global(manager)` once at start, wrap the future in \
                 `lock_core::with_locks(manager, …)`, or write `locks = …` in the attribute",
            ),
        }
    }
}

/// What holds a lock that is busy: see [`LockError::held_by`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeldBy {
    /// The task that made the request, for this long. It would wait for itself.
    ThisTask(Duration),
    /// Another branch of the body that made the request: a call with the same key that runs beside this one, as with `join!`.
    ThisBody,
    /// Another task of this process, for this long.
    ThisProcess(Duration),
    /// Another process with this library: its label, which is its host and process id.
    OtherProcess(Arc<str>),
}

impl fmt::Display for HeldBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ThisTask(held) => write!(
                f,
                "this task has held it for {held:.1?} and cannot wait for itself: call what needs the lock inside the body of `run` or \
                 of an annotated function, or release the guard first"
            ),
            Self::ThisBody => {
                f.write_str("another branch of the same body is in a call that holds it")
            }
            Self::ThisProcess(held) => {
                write!(f, "another task of this process has held it for {held:.1?}")
            }
            Self::OtherProcess(label) => write!(f, "the process {label} holds it"),
        }
    }
}

/// For interfaces that know only input and output errors, such as the body of a response.
impl From<LockError> for io::Error {
    fn from(error: LockError) -> Self {
        Self::other(error)
    }
}

impl Error for LockError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Unavailable { source, .. } => Some(&**source),
            _ => None,
        }
    }
}

/// How a lock failure becomes the return value of an annotated function.
///
/// Implemented for `Result<T, E>` where `E: From<LockError>`, and, with the feature of a web framework, for its own response
/// types. For a return type of your own, implement it, or give the attribute `on_error = …`.
#[cfg_attr(
    not(any(
        feature = "axum",
        feature = "actix",
        feature = "poem",
        feature = "tonic"
    )),
    diagnostic::on_unimplemented(
        message = "`{Self}` cannot carry a failed lock",
        label = "this return type cannot say that the lock was not acquired",
        note = "return `Result<_, E>` with an error that implements `From<lock_core::LockError>`",
        note = "or write `on_error = |error| …` in the attribute",
        note = "or implement `lock_core::FromLockError` for a return type of your own",
        note = "the responses of a web framework have it with the feature of `lock-core` that bears its name: `axum`, `actix`, \
                `poem`, `tonic`"
    )
)]
#[cfg_attr(
    any(
        feature = "axum",
        feature = "actix",
        feature = "poem",
        feature = "tonic"
    ),
    diagnostic::on_unimplemented(
        message = "`{Self}` cannot carry a failed lock",
        label = "this return type cannot say that the lock was not acquired",
        note = "of a `Result`, implement `From<lock_core::LockError>` for its error",
        note = "of a handler, return `impl IntoResponse` (axum, poem) or `impl Responder` (actix), whatever the value, or the framework's \
                own response",
        note = "or write `on_error = |error| …` in the attribute, or implement `lock_core::FromLockError` for a return type of your own"
    )
)]
pub trait FromLockError: Sized {
    /// Converts the failure.
    fn from_lock_error(error: LockError) -> Self;

    // For the attribute: clippy warns of a closure with a large error, and the compiler reports a mismatched path two times.
    #[doc(hidden)]
    #[must_use]
    fn __conversion() -> fn(LockError) -> Self {
        Self::from_lock_error
    }
}

#[diagnostic::do_not_recommend]
impl<T, E: From<LockError>> FromLockError for Result<T, E> {
    fn from_lock_error(error: LockError) -> Self {
        Err(error.into())
    }
}

/// A return type that can say "it did not run", for `on_busy = skip`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot say that the body was skipped",
    label = "`on_busy = skip` needs `()`, `Option<_>`, or a `Result` of one of them",
    note = "return `Option<_>`, or `Result<Option<_>, _>`, and get `None` when the lock is busy"
)]
pub trait Skipped: Sized {
    /// Returns the value that says that the body did not run.
    fn skipped() -> Self;
}

impl Skipped for () {
    fn skipped() -> Self {}
}

impl<T> Skipped for Option<T> {
    fn skipped() -> Self {
        None
    }
}

#[diagnostic::do_not_recommend]
impl<T: Skipped, E> Skipped for Result<T, E> {
    fn skipped() -> Self {
        Ok(T::skipped())
    }
}

/// How a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaseLost {
    /// It was not renewed in time: the network or the server failed, this process was stopped, or renewal is off.
    Expired,
    /// The server said that the key is gone or has another holder. It was deleted, evicted or released by force, or the server lost
    /// its data.
    TakenAway,
    /// It was held for as long as `max_hold` allows.
    MaxHold,
    /// [`LockManager::shutdown`](crate::LockManager::shutdown) ended it at its deadline.
    Shutdown,
    /// Another key that was acquired at once with this one was lost, and this one with it.
    OtherKey,
    /// This process was forked from the holder, and has a copy of the lease. The parent still holds the lock.
    Forked,
    /// It was released by its own guard. Only a clone that outlives the guard can see this.
    Released,
}

impl fmt::Display for LeaseLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "its time ran out before it was renewed",
            Self::TakenAway => "the key is gone or has another holder",
            Self::MaxHold => "it was held for as long as max_hold allows",
            Self::Shutdown => "the manager was shut down",
            Self::OtherKey => "another key that was taken with it was lost",
            Self::Forked => "it belongs to the process that this one was forked from",
            Self::Released => "it was released",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_never_prints_its_own_source() {
        let error = LockError::unavailable("the inner text").about(&LockKey::new("k"));
        assert!(!error.to_string().contains("inner text"), "{error}");
        assert_eq!(
            error.source().expect("has a source").to_string(),
            "the inner text"
        );
    }

    #[test]
    fn a_key_in_a_message_cannot_forge_a_line_of_a_log() {
        let error = LockError::Busy {
            key: LockKey::new("a\nERROR all is lost"),
            retry_after: Some(Duration::ZERO),
        };
        assert_eq!(
            error.to_string(),
            "the lock `a\\nERROR all is lost` is busy"
        );
    }

    #[test]
    fn a_lock_without_an_expiry_says_so() {
        let error = LockError::Busy {
            key: LockKey::new("k"),
            retry_after: None,
        };
        assert!(error.to_string().contains("no expiry"), "{error}");
    }
}
