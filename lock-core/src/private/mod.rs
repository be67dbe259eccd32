//! The items that the attribute's output calls, and nothing else. Not covered by any promise of stability.

use std::{
    future::poll_fn,
    marker::PhantomData,
    mem,
    ops::Deref,
    pin::{Pin, pin},
    sync::{Arc, MutexGuard},
    task::{Context, Poll},
};

use crate::{
    error::LockError,
    guard::LockGuard,
    integrations::response::until_sent,
    key::LockKey,
    lease::Lease,
    lock::key_state::terms::Terms,
    manager::{LockManager, LockSource, release_now},
    mode::Mode,
    options::ReleaseMode,
    runtime::mutex::Mutex,
};

mod answers;
mod assert_held;
mod finishing;
mod keys;
#[cfg(feature = "once")]
mod once;
mod permits;

pub use answers::*;
pub use assert_held::*;
pub use finishing::*;
pub use keys::*;
#[cfg(feature = "once")]
pub use once::*;
pub use permits::*;

pub use crate::{
    error::{FromLockError, Skipped},
    integrations::response::{ReleasedLock, Rest, SentLater},
    key::Part,
    options::{LockOptions, OnLost},
    template::Template,
};

/// The exchange between the annotated function and [`locked`].
///
/// The whole function is one future: arguments, key and body, in this order, in one scope, as they stand in the source. It
/// suspends in [`acquire`](Self::acquire) and stores its request here. `locked` polls it, acquires the lock, stores the lease
/// here, and polls it again. So no part of the function is moved, and inference, lints and drop order stay the same.
#[derive(Debug)]
pub struct CallEntry<W>(Arc<Mutex<State<W>>>);

#[derive(Debug)]
enum State<W> {
    /// Before the request, and while `locked` works on it.
    Outside,
    /// Written by the function, taken by `locked`.
    Wanted(W),
    /// Written by `locked`, taken by the function, which is then in its body.
    Admitted(Lease),
}

/// The request for a lock.
#[derive(Debug)]
pub struct WantedLock {
    manager: Result<LockManager, LockError>,
    keys: WantedKeys,
    options: LockOptions,
}

#[derive(Debug)]
enum WantedKeys {
    One(LockKey),
    /// Of a list, which may have one element.
    Several(Vec<KeyInMode>),
}

impl WantedKeys {
    /// Gives each key its mode: its own, or else that of the options.
    fn in_modes(
        self,
        options: &LockOptions,
    ) -> impl Iterator<Item = Result<(LockKey, Mode), LockError>> {
        let keys = match self {
            Self::One(key) => vec![key.into()],
            Self::Several(keys) => keys,
        };
        let usual = options.mode;
        keys.into_iter()
            .map(move |KeyInMode { key, mode }| Ok((key, mode.unwrap_or(usual))))
    }
}

/// Makes the two sides of one call: the first for [`locked`], the second for the function.
#[must_use]
pub fn entry<W>() -> (CallEntry<W>, CallEntry<W>) {
    let state = Arc::new(Mutex::new(State::Outside));
    (CallEntry(Arc::clone(&state)), CallEntry(state))
}

impl CallEntry<WantedLock> {
    /// Waits until the lock is held. What follows in the same future is the body.
    pub async fn acquire(
        self,
        manager: Result<LockManager, LockError>,
        key: LockKey,
        options: LockOptions,
    ) -> Lease {
        let key = WantedKeys::One(key);
        self.acquire_keys(manager, key, options).await
    }

    /// The same for a list of keys.
    pub async fn acquire_all<const N: usize>(
        self,
        manager: Result<LockManager, LockError>,
        keys: [impl Into<KeyInMode>; N],
        options: LockOptions,
    ) -> Lease {
        let keys = WantedKeys::Several(keys.map(Into::into).into());
        self.acquire_keys(manager, keys, options).await
    }

    async fn acquire_keys(
        self,
        manager: Result<LockManager, LockError>,
        keys: WantedKeys,
        options: LockOptions,
    ) -> Lease {
        let wanted = WantedLock {
            manager,
            keys,
            options,
        };
        self.admission(wanted).await
    }
}

impl<W> CallEntry<W> {
    async fn admission(self, wanted: W) -> Lease {
        *self.state() = State::Wanted(wanted);
        // Never wakes: `locked` polls again by itself, once it has the lease.
        poll_fn(|_| self.admitted()).await
    }

    /// The function's side: takes the lease.
    fn admitted(&self) -> Poll<Lease> {
        let mut state = self.state();
        match mem::replace(&mut *state, State::Outside) {
            State::Admitted(lease) => Poll::Ready(lease),
            other => {
                *state = other;
                Poll::Pending
            }
        }
    }

    /// The side of [`locked`]: takes the request.
    fn request(&self) -> Option<W> {
        match mem::replace(&mut *self.state(), State::Outside) {
            State::Wanted(request) => Some(request),
            _ => None,
        }
    }

    fn admit(&self, lease: Lease) {
        *self.state() = State::Admitted(lease);
    }

    fn state(&self) -> MutexGuard<'_, State<W>> {
        // No code panics while it is locked, and a half-written state does not exist.
        self.0.lock()
    }
}

/// Runs an annotated function: up to its request, then under the lock.
///
/// A call costs one box, which keeps the caller's future small, whatever the size of the body.
pub fn locked<T, F>(
    entry: CallEntry<WantedLock>,
    on_error: impl FnOnce(LockError) -> T,
    function: F,
) -> Pin<Box<impl Future<Output = T>>>
where
    F: Future<Output = T>,
{
    locked_then(entry, on_error, function, release_now)
}

/// The same for a function with a value that may be sent after the function has returned: `until_sent` is called with the value.
pub fn locked_until_sent<T, F>(
    entry: CallEntry<WantedLock>,
    on_error: impl FnOnce(LockError) -> T,
    function: F,
    until_sent: impl FnOnce(T, Finished<'_>) -> (T, Option<LockGuard>),
) -> Pin<Box<impl Future<Output = T>>>
where
    F: Future<Output = T>,
{
    let then = |value, guard, terms: &Terms| until_sent(value, Finished { guard, terms });
    locked_then(entry, on_error, function, then)
}

fn locked_then<T, F>(
    entry: CallEntry<WantedLock>,
    on_error: impl FnOnce(LockError) -> T,
    function: F,
    then: impl FnOnce(T, LockGuard, &Terms) -> (T, Option<LockGuard>),
) -> Pin<Box<impl Future<Output = T>>>
where
    F: Future<Output = T>,
{
    Box::pin(async move {
        let mut function = Scoped(pin!(Some(function)));
        let WantedLock {
            manager,
            keys,
            options,
        } = match first_step(&mut function, &entry).await {
            Step::Wants(request) => request,
            Step::Returned(value) => return value,
        };
        let enter = |lease| {
            entry.admit(lease);
            function
        };
        let result = match (manager, keys) {
            (Ok(manager), WantedKeys::One(key)) => {
                manager.run_then(key, options, enter, then).await
            }
            (Ok(manager), several) => match manager.wanted(several.in_modes(&options), &options) {
                Ok(wanted) => manager.run_all_then(wanted, enter, then).await,
                Err(error) => Err(error),
            },
            (Err(error), _) => Err(error),
        };
        result.unwrap_or_else(on_error)
    })
}

/// The lock of a function that has returned its value.
#[derive(Debug)]
pub struct Finished<'a> {
    guard: LockGuard,
    terms: &'a Terms,
}

/// The type of a value, for `sent_by(&value).finish(…)`. By the rules of method calls, the compiler takes the method of this type
/// if the value may be sent later. Otherwise it takes the method of [`AnyValue`].
#[derive(Debug)]
pub struct SentBy<T>(AnyValue<T>);

/// The type of a value that is complete when its function returns.
#[derive(Debug)]
pub struct AnyValue<T>(PhantomData<fn(T)>);

/// The type of a value.
#[must_use]
pub const fn sent_by<T>(_: &T) -> SentBy<T> {
    SentBy(AnyValue(PhantomData))
}

impl<T: SentLater> SentBy<T> {
    /// Moves the lock into a response body that is made while it is sent.
    pub fn finish(self, value: T, lock: Finished<'_>) -> (T, Option<LockGuard>) {
        until_sent(value, lock.guard, lock.terms)
    }
}

impl<T> AnyValue<T> {
    /// Returns the lock to be released now.
    pub fn finish(&self, value: T, lock: Finished<'_>) -> (T, Option<LockGuard>) {
        release_now(value, lock.guard, lock.terms)
    }
}

impl<T> Deref for SentBy<T> {
    type Target = AnyValue<T>;

    fn deref(&self) -> &AnyValue<T> {
        &self.0
    }
}

/// How far a function ran without the lock.
enum Step<T, W> {
    Wants(W),
    /// An early `return` or a `?` in the key or an option.
    Returned(T),
}

/// A pinned future that ends when this is dropped, although the storage of the future lives on. When the lease is lost, the body
/// must be gone before the caller gets the error.
struct Scoped<'a, F>(Pin<&'a mut Option<F>>);

/// Runs a function up to its request.
async fn first_step<W, F: Future + Unpin>(
    function: &mut F,
    entry: &CallEntry<W>,
) -> Step<F::Output, W> {
    poll_fn(|context| {
        if let Poll::Ready(value) = Pin::new(&mut *function).poll(context) {
            return Poll::Ready(Step::Returned(value));
        }
        match entry.request() {
            Some(request) => Poll::Ready(Step::Wants(request)),
            // The key expression awaits something, which will wake the task.
            None => Poll::Pending,
        }
    })
    .await
}

impl<F: Future> Future for Scoped<'_, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let future = self
            .0
            .as_mut()
            .as_pin_mut()
            .expect("the future is there until this is dropped");
        future.poll(context)
    }
}

impl<F> Drop for Scoped<'_, F> {
    fn drop(&mut self) {
        self.0.set(None);
    }
}

/// The task-local or the process-wide manager.
///
/// # Errors
///
/// [`LockError::NotConfigured`] if there is neither.
pub fn default_manager() -> Result<LockManager, LockError> {
    LockManager::current_default()
}

/// The manager of `locks = …`.
///
/// # Errors
///
/// None. It returns a `Result` only because [`default_manager`] does.
pub fn manager_of<S: LockSource + ?Sized>(source: &S) -> Result<LockManager, LockError> {
    Ok(source.lock_manager())
}

/// Calls `on_error = …`. The signature tells the compiler the types of a closure's parameter and value.
pub fn convert<T>(on_error: impl FnOnce(LockError) -> T, error: LockError) -> T {
    on_error(error)
}

/// Tells the compiler the type of the conversion of a failure before it is passed on.
pub fn on_error<T, F: FnOnce(LockError) -> T>(on_error: F) -> F {
    on_error
}

/// Options that leave everything to the manager.
pub fn options() -> LockOptions {
    LockOptions::default()
}

/// The same, but that the reply to the release is awaited, whatever the manager's default.
pub fn options_awaited() -> LockOptions {
    LockOptions {
        release: Some(ReleaseMode::Awaited),
        ..LockOptions::default()
    }
}

/// `None`, for a `return` that never happens: it tells the compiler the type of the function's value, as a signature does.
#[must_use]
pub const fn returns<T>() -> Option<T> {
    None
}

/// A lease that does not exist, for a function that is not compiled anyway.
#[must_use]
pub fn lease() -> Lease {
    unreachable!("the attribute has reported an error")
}

pub use editor::*;

/// The part of the attribute that only an editor sees. It is in this crate, because a `cfg` in the attribute's output would cause a
/// warning in every crate that does not know its name.
#[allow(unexpected_cfgs, reason = "set by the editor, not by cargo")]
mod editor {
    #[doc(hidden)]
    pub use crate::__for_editor as for_editor;

    #[cfg(not(rust_analyzer))]
    #[doc(hidden)]
    #[macro_export]
    macro_rules! __for_editor {
        ($($seen:tt)*) => {};
    }

    #[cfg(rust_analyzer)]
    #[doc(hidden)]
    #[macro_export]
    macro_rules! __for_editor {
        () => {};
        ($($seen:tt)*) => {{ let _ = ($($seen)*,); }};
    }

    #[cfg(rust_analyzer)]
    /// The attribute's options, for an editor to complete and to explain.
    #[allow(non_upper_case_globals, reason = "named as they are written")]
    pub mod option {
        /// What is locked: a template such as `"order:{order_id}"`, any expression that is a text or a `LockKey`, or
        /// several of both between brackets.
        pub const key: () = ();
        /// How long a crash of the holder blocks all others: `"10s"`, or a `Duration`. Defaults to the manager's.
        pub const ttl: () = ();
        /// How long to wait for a busy lock: `"2s"`, `"0s"`, `"forever"` or a `Duration`. Defaults to the manager's.
        pub const wait: () = ();
        /// Beside which holders the body may run: none (`exclusive`, the default), or other `shared` ones. For several keys: one
        /// mode for all, or one for each between brackets.
        pub const mode: () = ();
        /// How many holders the lock has at a time, instead of a mode: 1 to 1,000.
        pub const permits: () = ();
        /// Whether the lease is renewed while the body runs: `true`, the default, or `false`.
        pub const renew: () = ();
        /// The longest time for which the lock is held: then the lease is lost. For a body that may hang.
        pub const max_hold: () = ();
        /// The shortest time for which the lock is held, even if the body ends sooner, and even if it fails.
        pub const min_hold: () = ();
        /// What the call does if the lock is busy: return an `error`, the default, or `skip` the body.
        pub const on_busy: () = ();
        /// What a lost lease does to the body: `cancel`, the default, or `continue`.
        pub const on_lost: () = ();
        /// What a drop of the caller does to the body: `cancel` drops it, `finish` lets it go on. Defaults to `cancel` in
        /// `distributed_lock`, and to `finish` in `run_once`.
        pub const on_drop: () = ();
        /// For how long a repeat gets the result: `"24h"`, or a `Duration`; 100 ms to 365 days.
        pub const keep: () = ();
        /// What the request is about: an expression that is `Serialize`. Another request with the same key is refused.
        pub const fingerprint: () = ();
        /// A path or closure that turns a `LockError` into the return value.
        pub const on_error: () = ();
        /// Whether the release is `awaited` before the call returns, or sent in the `background`. Defaults to the manager's choice,
        /// which is `awaited`.
        pub const release: () = ();
        /// The name of the `Lease` in the body, for example to read its fencing token.
        pub const lease: () = ();
        /// The manager, or something that implements `LockSource`. Defaults to the task's, then to the global one.
        pub const locks: () = ();
    }
}
