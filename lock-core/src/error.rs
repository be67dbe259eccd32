//! The errors of lock operations, one variant for each decision that a caller can take.

use std::{error::Error, fmt, io, sync::Arc, time::Duration};

use crate::key::LockKey;

/// The reason why a lock was not acquired, or is no longer held.
///
/// | variant | means | a caller would |
/// | --- | --- | --- |
/// | [`Busy`](Self::Busy) | another holder has it, which is normal | answer 409, or try again later |
/// | [`Lost`](Self::Lost) | this process held it, but no longer does | stop, and undo or re-check what was done |
/// | [`Unavailable`](Self::Unavailable) | the backend did not reply or cannot serve; the state is unknown | answer 503 |
/// | [`Invalid`](Self::Invalid) | the request itself is wrong | fix the program or its configuration |
/// | [`NotConfigured`](Self::NotConfigured) | no manager was given | call [`set_global`](crate::manager::default_manager::set_global) |
///
/// No variant prints an owner token or a password.
///
/// # Examples
///
/// An application's own error type should keep the `LockError`, so that its response has the right status and
/// `Retry-After`. [Web frameworks](crate::guide::web#an-error-type-of-your-own) shows the rest for axum, actix and
/// `anyhow`.
///
/// ```
/// # use lock_core::LockError;
/// enum ApiError {
///     Lock(LockError), // with the `axum` feature: `error.into_response()`
/// }
///
/// impl From<LockError> for ApiError {
///     fn from(error: LockError) -> Self {
///         Self::Lock(error)
///     }
/// }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum LockError {
    /// Another holder has the lock, or other waiters are ahead of this one.
    ///
    /// If the task already holds another key, the message suggests acquiring both in one list, because tasks that acquire
    /// one lock inside another may wait for each other forever.
    #[non_exhaustive]
    Busy {
        /// The key that is locked.
        key: LockKey,
        /// How long to wait before another try: see [`LockError::retry_after`]. `None` if the holder's lease never ends by
        /// itself, because another client took the key without an expiry. Only
        /// [`LockManager::force_release`](crate::manager::LockManager::force_release) frees such a lock.
        retry_after: Option<Duration>,
        /// The holder, as far as the call knew without an extra request.
        held_by: Option<HeldBy>,
        /// Another key that the task already holds.
        also_held: Option<LockKey>,
    },
    /// The lease ended before it was released.
    #[non_exhaustive]
    Lost {
        /// The key that was locked.
        key: LockKey,
        /// How it ended.
        reason: LeaseLost,
        /// The last failure of the backend, if it is the reason why the lease was not renewed.
        failure: Option<Arc<str>>,
    },
    /// The backend did not reply, or replied that it cannot serve requests now. It is unknown whether the lock is free.
    Unavailable {
        /// The key that was to be locked; `None` if no key was involved, as while connecting.
        key: Option<LockKey>,
        /// The error that the backend or the connection reported.
        source: Arc<dyn Error + Send + Sync>,
    },
    /// The request cannot succeed as it is: a value or a url is wrong, or the key holds something that is not a lock.
    Invalid {
        /// The key that was to be locked; `None` if no key was involved.
        key: Option<LockKey>,
        /// The mistake, and what to write instead.
        reason: Arc<str>,
    },
    /// The body has already run for another caller, and this caller cannot have its result: see
    /// [`LockManager::run_once`](crate::manager::LockManager::run_once). The body does not run again.
    #[non_exhaustive]
    Repeated {
        /// The key under which the body has run.
        key: LockKey,
        /// Why there is no result for this caller.
        reason: Repeat,
    },
    /// There is no manager: none was given by `locks = …`, by [`with_locks`](crate::manager::default_manager::with_locks),
    /// or by [`set_global`](crate::manager::default_manager::set_global).
    ///
    /// `with_locks` gives a manager to one task. A task that is spawned inside does not inherit it, so wrap the spawned
    /// future in `with_locks`, too.
    NotConfigured,
}

/// The shortest and the longest pause before another try.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// The pause after a request has failed because of an outage.
const PAUSE_IN_AN_OUTAGE: Duration = Duration::from_secs(5);

/// Rounds to whole seconds, because the header has no fractions. Rounds up, because a caller should not retry too early,
/// and never to zero, which would cause a busy loop.
fn pause(expected: Duration) -> Duration {
    let (least, longest) = PAUSES;
    let begun = u64::from(expected.subsec_nanos() > 0);
    let seconds = expected.as_secs().saturating_add(begun);
    Duration::from_secs(seconds).clamp(least, longest)
}

impl LockError {
    /// Returns the key that the error is about, if there is one.
    #[must_use]
    pub fn key(&self) -> Option<&LockKey> {
        match self {
            Self::Busy { key, .. } | Self::Lost { key, .. } | Self::Repeated { key, .. } => {
                Some(key)
            }
            Self::Unavailable { key, .. } | Self::Invalid { key, .. } => key.as_ref(),
            Self::NotConfigured => None,
        }
    }

    /// Returns the holder of a lock that is [`Busy`](Self::Busy), as far as the call knew without an extra request.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lock_core::LockError> {
    /// use lock_core::{LockManager, LockOptions, inspect::HeldBy};
    ///
    /// let locks = LockManager::in_memory();
    /// let guard = locks.acquire("order:7", LockOptions::default()).await?;
    /// let busy = locks.acquire("order:7", LockOptions::default().no_wait()).await.expect_err("held");
    /// // This task would wait for itself.
    /// assert!(matches!(busy.held_by(), Some(HeldBy::ThisTask(_))));
    /// # guard.release().await
    /// # }
    /// ```
    #[must_use]
    pub fn held_by(&self) -> Option<HeldBy> {
        match self {
            Self::Busy { held_by, .. } => held_by.clone(),
            _ => None,
        }
    }

    /// Returns `true` if another holder has the lock, the only failure that is part of normal operation.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Busy { .. })
    }

    /// Returns how long to wait before another try is worthwhile. This is the value of the header `Retry-After` in the
    /// responses of the web integrations, in whole seconds.
    ///
    /// | variant | pause | because |
    /// | --- | --- | --- |
    /// | [`Busy`](Self::Busy) | how long this process recently held keys of the template, or if it held none, the time that the lease has left; 1 s to 10 s | a renewed lease lasts as long as its holder lives, so the time it has left says little |
    /// | [`Busy`](Self::Busy) without an expiry | `None` | only an operator can free the lock |
    /// | [`Lost`](Self::Lost) | 1 s | the lock is probably free, and the work may be half done |
    /// | [`Unavailable`](Self::Unavailable) | 5 s | an outage takes a while, and all callers come back at once |
    /// | [`Invalid`](Self::Invalid), [`Repeated`](Self::Repeated), [`NotConfigured`](Self::NotConfigured) | `None` | the same request fails each time |
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use lock_core::{LockManager, LockOptions};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lock_core::LockError> {
    /// let locks = LockManager::in_memory();
    /// let options = LockOptions::new(Duration::from_secs(3)).no_wait();
    /// let guard = locks.acquire("order:7", options.clone()).await?;
    /// let busy = locks.acquire("order:7", options).await.expect_err("held");
    /// assert_eq!(busy.retry_after(), Some(Duration::from_secs(3)));
    /// # guard.release().await
    /// # }
    /// ```
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Busy { retry_after, .. } => retry_after.map(pause),
            Self::Lost { .. } => Some(PAUSES.0),
            Self::Unavailable { .. } => Some(PAUSE_IN_AN_OUTAGE),
            Self::Repeated { .. } | Self::Invalid { .. } | Self::NotConfigured => None,
        }
    }

    /// Creates a busy error. `left` is the time that the holder's lease has left, or `None` if it has no expiry.
    pub(crate) fn busy(key: &LockKey, left: Option<Duration>, known: KnownHolder) -> Self {
        Self::Busy {
            key: key.clone(),
            retry_after: left.map(|left| pause(known.typical_hold.unwrap_or(left))),
            held_by: known.held_by,
            also_held: None,
        }
    }

    /// Records in a busy error that the task already holds another key.
    pub(crate) fn with_also_held(mut self, held: impl FnOnce(&LockKey) -> Option<LockKey>) -> Self {
        if let Self::Busy { key, also_held, .. } = &mut self {
            *also_held = held(key);
        }
        self
    }

    /// Creates a lost error. `failure` is the last failure of a backend that does not reply.
    pub(crate) fn lost(key: &LockKey, reason: LeaseLost, failure: Option<Arc<str>>) -> Self {
        Self::Lost {
            key: key.clone(),
            reason,
            failure: failure.filter(|_| reason == LeaseLost::Expired),
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

    /// Returns `true` if this error has already been logged and counted.
    #[cfg(any(feature = "http", feature = "actix", feature = "tonic"))]
    pub(crate) fn is_logged(&self) -> bool {
        matches!(self, Self::Unavailable { source, .. } if source.is::<LoggedSource>())
    }

    /// Marks the error as logged, so that its conversion to a response does not log it again.
    pub(crate) fn logged(mut self) -> Self {
        if let Self::Unavailable { source, .. } = &mut self {
            *source = Arc::new(LoggedSource(source.clone()));
        }
        self
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
                held_by,
                also_held,
            } => {
                write!(f, "the lock `{}` is busy", key.shown())?;
                if let Some(held_by) = held_by {
                    write!(f, ": {held_by}")?;
                }
                if let Some(held) = also_held {
                    write!(
                        f,
                        "; this task already holds `{}`: acquire both in one call, with `acquire_all` or `key = [\"…\", \"…\"]`, or two \
                        tasks may wait for each other",
                        held.shown()
                    )?;
                }
                Ok(())
            }
            Self::Busy {
                key,
                retry_after: None,
                ..
            } => write!(
                f,
                "the lock `{}` is busy and has no expiry, because another client took it without one; \
                 `force_release` frees it",
                key.shown()
            ),
            Self::Lost { key, reason, failure } => {
                write!(f, "the lock `{}` was lost: {reason}", key.shown())?;
                failure.as_ref().map_or(Ok(()), |failure| write!(f, " (the last failure: {failure})"))
            }
            Self::Repeated { key, reason } => {
                write!(f, "`{}` has already been run, but {reason}", key.shown())
            }
            Self::Unavailable { key: Some(key), .. } => {
                write!(f, "the lock `{}` is unavailable: no usable reply from the backend", key.shown())
            }
            Self::Unavailable { key: None, .. } => f.write_str("the lock backend is unavailable"),
            Self::Invalid {
                key: Some(key),
                reason,
            } => write!(f, "the lock `{}` cannot be used: {reason}", key.shown()),
            Self::Invalid { key: None, reason } => f.write_str(reason),
            Self::NotConfigured => f.write_str(
                "no lock manager is configured: call `lock_core::set_global(manager)` once at startup, wrap the future in \
                 `lock_core::with_locks(manager, …)`, or write `locks = …` in the attribute; `with_locks` does not reach into \
                 `tokio::spawn`: wrap the spawned future, too",
            ),
        }
    }
}

/// The facts that this process knows about the holder of a busy lock.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownHolder {
    pub(crate) held_by: Option<HeldBy>,
    /// How long the holders in this process recently held keys of the template.
    pub(crate) typical_hold: Option<Duration>,
}

/// The source of an error that has already been logged. It is formatted exactly like the source inside.
struct LoggedSource(Arc<dyn Error + Send + Sync>);

impl fmt::Debug for LoggedSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for LoggedSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl Error for LoggedSource {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

/// The holder of a busy lock: see [`LockError::held_by`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeldBy {
    /// The task that made the request, which has held the lock for this long. It would wait for itself.
    ThisTask(Duration),
    /// Another branch of the body that made the request: a call with the same key that runs concurrently, as with `join!`.
    ThisBody,
    /// Another task of this process, which has held the lock for this long.
    ThisProcess(Duration),
    /// Another process that uses this library: its [label](crate::manager::builder::LockManagerBuilder::label), or its host
    /// and process id.
    OtherProcess(Arc<str>),
}

impl fmt::Display for HeldBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ThisTask(held) => write!(
                f,
                "this task has held it for {held:.1?} and cannot wait for itself: make the call inside the body of `run` or of an \
                annotated function, or release the guard first"
            ),
            Self::ThisBody => f.write_str("a call in another branch of the same body holds it"),
            Self::ThisProcess(held) => {
                write!(f, "another task of this process has held it for {held:.1?}")
            }
            Self::OtherProcess(label) => write!(f, "the process {label} holds it"),
        }
    }
}

/// The reason why a caller cannot have the result of a body that has already run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Repeat {
    /// The result belongs to a request with a different fingerprint.
    OtherRequest,
    /// The result was not stored, because it is larger than 64 KiB, or is a response whose body was incomplete.
    NotKept,
}

impl fmt::Display for Repeat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OtherRequest => "its result belongs to a different request with the same key",
            Self::NotKept => "its result was not stored",
        })
    }
}

/// Wraps a lock error for interfaces that accept only I/O errors, such as the body of a response.
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

/// Converts a lock failure into the return value of an annotated function.
///
/// Implemented for `Result<T, E>` where `E: From<LockError>`, and, with the feature of a web framework, for its response
/// types. For a return type of your own, implement it, or give the attribute `on_error = …`.
///
/// # Examples
///
/// ```
/// use lock_core::{FromLockError, LockError};
///
/// enum Outcome {
///     Done,
///     TryAgain,
/// }
///
/// impl FromLockError for Outcome {
///     fn from_lock_error(_error: LockError) -> Self {
///         Self::TryAgain
///     }
/// }
/// # #[cfg(feature = "macros")] {
///
/// #[lock_core::distributed_lock(key = "report")]
/// async fn report() -> Outcome {
///     Outcome::Done
/// }
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot represent a lock failure",
    label = "this return type cannot report that the lock was not acquired",
    note = "return `Result<_, E>` with an error that implements `From<lock_core::LockError>`",
    note = "in a handler, return `impl IntoResponse` (axum, poem) or `impl Responder` (actix), whatever the value, or the framework's \
            own response, with the feature of `lock-core` of the same name: `axum`, `actix`, `poem`, `tonic`",
    note = "the features support axum 0.8 (axum-core 0.5), actix-web 4, poem 3, tonic 0.14 and http 1, and no other versions: if the \
            feature is on, `cargo tree -d` shows whether the program has two versions",
    note = "or write `on_error = |error| …` in the attribute, or implement `lock_core::FromLockError` for a return type of your own"
)]
pub trait FromLockError: Sized {
    /// Converts the failure.
    fn from_lock_error(error: LockError) -> Self;

    // The attribute's code calls this function, because clippy would warn about a closure that takes a large error, and the
    // compiler would report a mismatched path twice.
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

/// A return type that can express that the body did not run, for `on_busy = skip`.
///
/// # Examples
///
/// ```
/// # #[cfg(feature = "macros")] {
/// use lock_core::{LockError, distributed_lock};
///
/// #[distributed_lock(key = "nightly-report", on_busy = skip)]
/// async fn report() -> Result<Option<usize>, LockError> {
///     Ok(Some(42)) // `Ok(None)` if another process runs the report
/// }
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot express that the body was skipped",
    label = "`on_busy = skip` needs `()`, `Option<_>`, or a `Result` of one of them",
    note = "return `Option<_>`, or `Result<Option<_>, _>`, and get `None` when the lock is busy"
)]
pub trait Skipped: Sized {
    /// Returns the value of a call whose body did not run.
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

/// The reason why a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaseLost {
    /// It was not renewed in time, because the network or the server failed, this process was stopped, or renewal is off.
    Expired,
    /// The server said that the key is gone or has another holder. The key was deleted, evicted or released by force, or
    /// the server lost its data.
    TakenAway,
    /// It was held for as long as `max_hold` allows.
    MaxHold,
    /// [`LockManager::shutdown`](crate::manager::LockManager::shutdown) reached its deadline, and ended the lease.
    Shutdown,
    /// Another key that was acquired in the same call was lost, and this key with it.
    OtherKey,
    /// It was released by its own guard. Only a clone of the lease that outlives the guard can see this.
    Released,
}

impl fmt::Display for LeaseLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "its time ran out before it was renewed",
            Self::TakenAway => "the key is gone or has another holder",
            Self::MaxHold => "it was held for as long as max_hold allows",
            Self::Shutdown => "the manager was shut down",
            Self::OtherKey => "another key that was acquired with it was lost",
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
    fn marking_an_error_as_logged_does_not_change_its_texts() {
        let error = LockError::unavailable("the inner text").about(&LockKey::new("k"));
        let logged = error.clone().logged();
        assert_eq!(logged.to_string(), error.to_string());
        assert_eq!(format!("{logged:?}"), format!("{error:?}"));
        let source = logged.source().expect("has a source");
        assert_eq!(source.to_string(), "the inner text");
        assert!(source.source().is_none(), "the source is reported once");
    }

    #[test]
    fn a_key_cannot_forge_a_line_of_the_log() {
        let key = LockKey::new("a\nERROR all is lost");
        let error = LockError::busy(&key, Some(Duration::ZERO), KnownHolder::default());
        assert_eq!(
            error.to_string(),
            "the lock `a\\nERROR all is lost` is busy"
        );
    }

    #[test]
    fn a_pause_is_rounded_up_to_whole_seconds_between_1_and_10() {
        let key = LockKey::new("k");
        let after = |left| {
            let error = LockError::busy(&key, left, KnownHolder::default());
            let LockError::Busy { retry_after, .. } = error else {
                panic!("not busy: {error:?}");
            };
            assert_eq!(
                error.retry_after(),
                retry_after,
                "the field and the method agree"
            );
            retry_after.map(|pause| pause.as_millis())
        };
        assert_eq!(after(None), None);
        let of_millis = [
            (0, 1000),
            (1, 1000),
            (1000, 1000),
            (1001, 2000),
            (9500, 10_000),
            (9_900_000, 10_000),
        ];
        for (left, expected) in of_millis {
            let left = Some(Duration::from_millis(left));
            assert_eq!(after(left), Some(expected), "{left:?}");
        }
        assert_eq!(after(Some(Duration::MAX)), Some(10_000));
    }

    #[test]
    fn the_pause_follows_the_typical_hold_time_of_the_template() {
        let after = |left| {
            let typically = KnownHolder {
                held_by: None,
                typical_hold: Some(Duration::from_secs(2)),
            };
            LockError::busy(&LockKey::new("order:7"), left, typically).retry_after()
        };
        let typical = Some(Duration::from_secs(2));
        assert_eq!(after(Some(Duration::from_secs(3600))), typical);
        assert_eq!(after(Some(Duration::from_millis(10))), typical);
        assert_eq!(
            after(None),
            None,
            "a lease without an expiry never ends by itself"
        );
    }

    #[test]
    fn only_temporary_failures_have_a_retry_after() {
        let key = LockKey::new("k");
        let lost = LockError::lost(&key, LeaseLost::Expired, None);
        let seconds = |error: LockError| error.retry_after().map(|pause| pause.as_secs());
        assert_eq!(seconds(lost), Some(1));
        assert_eq!(seconds(LockError::unavailable("down")), Some(5));
        assert_eq!(seconds(LockError::invalid("wrong")), None);
        assert_eq!(seconds(LockError::NotConfigured), None);
    }

    #[test]
    fn the_error_for_a_missing_manager_mentions_spawned_tasks() {
        let text = LockError::NotConfigured.to_string();
        assert!(
            text.contains("`with_locks` does not reach into `tokio::spawn`"),
            "{text}"
        );
    }

    #[test]
    fn a_lock_without_an_expiry_says_so() {
        let error = LockError::busy(&LockKey::new("k"), None, KnownHolder::default());
        assert!(error.to_string().contains("no expiry"), "{error}");
    }
}
