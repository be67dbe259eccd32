//! The items that the attribute's generated code calls, and nothing else. Not covered by any promise of stability.

#![expect(
    clippy::must_use_candidate,
    reason = "the generated code uses each value"
)]

use std::{
    future::poll_fn,
    marker::PhantomData,
    ops::Deref,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
};

use crate::{
    error::LockError,
    guard::LockGuard,
    key::LockKey,
    lease::Lease,
    manager::{LockManager, default_manager::LockSource, wanted_keys::WantedKeys},
    options::{KeyInList, ReleaseMode},
    runtime::mutex::Mutex,
};

mod answers;
mod values;

pub use answers::*;
pub use values::*;

pub use crate::{
    backend::RunResult,
    error::{FromLockError, Skipped},
    integrations::response::SentLater,
    key::Part,
    manager::run::{Finished, Storing, release_now},
    options::{LockOptions, OnLost},
    template::Template,
};

/// One side of the exchange between an annotated function and [`locked`].
///
/// The whole function is one future: arguments, key and body, in this order and in one scope, as they are written in the
/// source. It stores its request here and suspends in [`acquire`](Self::acquire). `locked` polls it until then, acquires
/// the lock, stores the lease here, and polls it again. So no part of the function is moved, and inference, lints and drop
/// order stay the same.
#[derive(Debug)]
pub struct CallEntry<K>(Arc<Mutex<State<K>>>);

/// The request for a lock. `K` contains the options for the result, if there is one.
type Wanted<K> = Result<((WantedKeys, K), LockManager), LockError>;

#[derive(Debug)]
struct State<K> {
    /// Set by the function, and taken by [`CallEntry::drive`].
    wanted: Option<Wanted<K>>,
    /// Set by [`CallEntry::admit`], and taken by the function, which then enters its body.
    admitted: Option<Lease>,
}

/// Creates the two sides of one call, the first for [`locked`], and the second for the function.
pub fn entry<K>() -> (CallEntry<K>, CallEntry<K>) {
    let state = Arc::new(Mutex::new(State {
        wanted: None,
        admitted: None,
    }));
    (CallEntry(Arc::clone(&state)), CallEntry(state))
}

impl CallEntry<()> {
    /// Waits until the lock is held. The body is the rest of the same future.
    pub async fn acquire(
        self,
        manager: Result<LockManager, LockError>,
        key: LockKey,
        options: LockOptions,
    ) -> Lease {
        let wanted =
            manager.and_then(|manager| Ok(((manager.wanted(key, &options)?, ()), manager)));
        self.admission(wanted).await
    }

    /// Like [`acquire`](Self::acquire), for a list of keys.
    pub async fn acquire_all<const N: usize>(
        self,
        manager: Result<LockManager, LockError>,
        keys: [impl KeyInList; N],
        options: LockOptions,
    ) -> Lease {
        let wanted =
            manager.and_then(|manager| Ok(((manager.all_wanted(keys, &options)?, ()), manager)));
        self.admission(wanted).await
    }
}

impl<K> CallEntry<K> {
    pub(crate) async fn admission(self, wanted: Wanted<K>) -> Lease {
        self.0.lock().wanted = Some(wanted);
        // No waker is registered, because the function is polled again once there is a lease.
        poll_fn(|_| match self.0.lock().admitted.take() {
            Some(lease) => Poll::Ready(lease),
            None => Poll::Pending,
        })
        .await
    }

    /// Polls the function up to its request, and then passes both to `run`.
    async fn drive<T, F, R>(
        self,
        mut function: F,
        on_error: impl FnOnce(LockError) -> T,
        run: impl FnOnce(Wanted<K>, Self, F) -> R,
    ) -> T
    where
        F: Future<Output = T> + Unpin,
        R: Future<Output = Result<T, LockError>>,
    {
        let first_step = poll_fn(|context| {
            // The key or an option contains an early `return` or a `?`.
            if let Poll::Ready(value) = Pin::new(&mut function).poll(context) {
                return Poll::Ready(Err(value));
            }
            match self.0.lock().wanted.take() {
                Some(wanted) => Poll::Ready(Ok(wanted)),
                // The key's expression awaits something, which will wake the task.
                None => Poll::Pending,
            }
        });
        match first_step.await {
            Err(value) => value,
            Ok(wanted) => run(wanted, self, function).await.unwrap_or_else(on_error),
        }
    }

    /// Admits the function to its body, which it enters when it is polled again.
    fn admit<F>(&self, lease: Lease, function: F) -> F {
        self.0.lock().admitted = Some(lease);
        function
    }
}

/// Runs an annotated function, first up to its request, and then under the lock. `store` determines how its value is
/// stored, and `then` is called with the value.
///
/// A call allocates one box, which keeps the caller's future small, whatever the size of the body.
pub fn locked<T, F, S, K>(
    entry: CallEntry<K>,
    store: S,
    function: F,
    on_error: impl FnOnce(LockError) -> T,
    then: impl FnOnce(T, Finished<'_>) -> (T, Option<LockGuard>),
) -> Call<F, impl Future<Output = T>>
where
    F: Future<Output = T>,
    (S, K): Storing<T>,
{
    Call::of(async move {
        let function = Scoped(pin!(Some(function)));
        let run = |wanted: Wanted<_>, entry: CallEntry<_>, function| async move {
            let ((keys, keeping), manager) = wanted?;
            let body = |lease| entry.admit(lease, function);
            manager.run_wanted(keys, body, (store, keeping), then).await
        };
        entry.drive(function, on_error, run).await
    })
}

/// Like [`locked`], with a body that continues after the caller is dropped.
pub fn finishing<T, F, S, K>(
    entry: CallEntry<K>,
    store: S,
    function: F,
    on_error: impl FnOnce(LockError) -> T,
    then: impl FnOnce(T, Finished<'_>) -> (T, Option<LockGuard>) + Send + 'static,
) -> Call<F, impl Future<Output = T>>
where
    T: Send + 'static,
    F: Future<Output = T>,
    K: Send + 'static,
    (S, K): Storing<T> + Send + 'static,
    WithoutCaller<F>: MayContinue<T>,
{
    Call::of(async move {
        let function = WithoutCaller(function).boxed();
        let run = |wanted: Wanted<_>, entry: CallEntry<_>, function| async move {
            let ((keys, keeping), manager) = wanted?;
            let body = move |lease| entry.admit(lease, function);
            manager
                .finish_wanted(keys, body, (store, keeping), then)
                .await
        };
        entry.drive(function, on_error, run).await
    })
}

/// A function that continues after its caller is dropped.
#[derive(Debug)]
pub struct WithoutCaller<F>(F);

/// The requirement for such a function, which must be able to move to another thread.
// Implemented for the wrapper, because for the future itself, the compiler would report `Send` without these texts.
#[diagnostic::on_unimplemented(
    message = "with `on_drop = finish`, the body runs in a task of its own, but it is not `Send`",
    label = "a value that is not `Send` is used across an `.await`, or is an argument",
    note = "write `on_drop = cancel`, so that the body is dropped with its caller and may use such values",
    note = "to see which value it is, write `on_drop = cancel`, and pass a call of the function to `tokio::spawn`"
)]
pub trait MayContinue<T> {
    /// Boxes the function, because it moves into its task after it has been polled.
    fn boxed(self) -> Pin<Box<dyn Future<Output = T> + Send>>;
}

#[diagnostic::do_not_recommend]
impl<T, F: Future<Output = T> + Send + 'static> MayContinue<T> for WithoutCaller<F> {
    fn boxed(self) -> Pin<Box<dyn Future<Output = T> + Send>> {
        Box::pin(self.0)
    }
}

/// A boxed call of an annotated function.
///
/// The compiler proves that a future is `Send` field by field, down through every call inside it, and gives up at a depth
/// of 128. It checks fields in declaration order and caches its results. Therefore the function comes first: from one
/// function to the next, there are seven steps through this field, but eleven through the box.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Call<F, D> {
    function: PhantomData<F>,
    driver: Pin<Box<D>>,
}

impl<F, D> Call<F, D> {
    fn of(driver: D) -> Self {
        Self {
            function: PhantomData,
            driver: Box::pin(driver),
        }
    }
}

// The function is not pinned by this type, since it is in the box.
impl<F, D> Unpin for Call<F, D> {}

impl<F, D: Future> Future for Call<F, D> {
    type Output = D::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<D::Output> {
        self.driver.as_mut().poll(context)
    }
}

/// The type of a value, for `sent_by(&value).finish(…)`. Method resolution picks the method of this type if the value may
/// be sent later, and that of [`AnyValue`] otherwise.
#[derive(Debug)]
pub struct SentBy<T>(AnyValue<T>);

/// The type of a value that is complete when its function returns.
#[derive(Debug)]
pub struct AnyValue<T>(PhantomData<fn(T)>);

/// Returns the type of a value.
pub const fn sent_by<T>(_: &T) -> SentBy<T> {
    SentBy(AnyValue(PhantomData))
}

impl<T: SentLater> SentBy<T> {
    /// Moves the lock into a response body that is produced while it is sent.
    pub fn finish(self, value: T, lock: Finished<'_>) -> (T, Option<LockGuard>) {
        value.until_sent(lock)
    }
}

impl<T> AnyValue<T> {
    /// Returns the guard, so that the lock is released now.
    pub fn finish(&self, value: T, lock: Finished<'_>) -> (T, Option<LockGuard>) {
        release_now(value, lock)
    }
}

impl<T> Deref for SentBy<T> {
    type Target = AnyValue<T>;

    fn deref(&self) -> &AnyValue<T> {
        &self.0
    }
}

/// A pinned future that is dropped together with this value, although its storage lives longer. When the lease is lost, the
/// body must be dropped before the caller gets the error.
struct Scoped<'a, F>(Pin<&'a mut Option<F>>);

impl<F: Future> Future for Scoped<'_, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let future = self
            .0
            .as_mut()
            .as_pin_mut()
            .expect("the future exists until this value is dropped");
        future.poll(context)
    }
}

impl<F> Drop for Scoped<'_, F> {
    fn drop(&mut self) {
        self.0.set(None);
    }
}

/// Returns the task-local or the process-wide manager.
///
/// # Errors
///
/// Returns [`LockError::NotConfigured`] if there is neither.
pub fn default_manager() -> Result<LockManager, LockError> {
    LockManager::current_default()
}

/// Returns the manager of `locks = …`.
///
/// # Errors
///
/// Never fails. It returns a `Result` only because [`default_manager`] does.
pub fn manager_of<S: LockSource + ?Sized>(source: &S) -> Result<LockManager, LockError> {
    Ok(source.lock_manager())
}

/// Calls `on_error = …`. The signature lets the compiler infer the types of a closure's parameter and return value.
pub fn convert<T>(on_error: impl FnOnce(LockError) -> T, error: LockError) -> T {
    on_error(error)
}

/// Returns options that leave everything to the manager's defaults.
pub fn options() -> LockOptions {
    LockOptions::default()
}

/// Like [`options`], except that the reply to the release is awaited, whatever the manager's default.
pub fn options_awaited() -> LockOptions {
    LockOptions {
        release: Some(ReleaseMode::Awaited),
        ..LockOptions::default()
    }
}

/// Returns `None`, for a `return` that is never executed. It lets the compiler infer the type of the function's value, as a
/// signature would.
pub const fn returns<T>() -> Option<T> {
    None
}

/// Stands for a lease in a function that does not compile anyway.
pub fn lease() -> Lease {
    unreachable!("the attribute has reported an error")
}

pub use editor::*;

/// The part of the attribute that only an editor sees. It is in this crate, because a `cfg` in the generated code would
/// cause a warning in every crate that does not declare its name.
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
    #[allow(non_upper_case_globals, reason = "named like the options themselves")]
    pub mod option {
        /// The key to lock: a template such as `"order:{order_id}"`, any expression that is a text or a `LockKey`, or
        /// several of both in brackets.
        pub const key: () = ();
        /// How long a crash of the holder blocks all others: `"10s"`, or a `Duration`. Defaults to the manager's.
        pub const ttl: () = ();
        /// How long to wait for a busy lock: `"2s"`, `"0s"`, `"forever"` or a `Duration`. Defaults to the manager's.
        pub const wait: () = ();
        /// The holders with which the body may run concurrently: none (`exclusive`, the default), or other `shared` ones.
        /// For several keys, one mode for all, or one for each in brackets.
        pub const mode: () = ();
        /// How many holders the lock has at a time, instead of a mode: 1 to 1,000.
        pub const permits: () = ();
        /// Renewal of the lease while the body runs: `true`, the default, or `false`.
        pub const renew: () = ();
        /// The longest time for which the lock is held, after which the lease is lost. For a body that may hang.
        pub const max_hold: () = ();
        /// The shortest time for which the lock is held, even if the body ends sooner, and even if it fails.
        pub const min_hold: () = ();
        /// The behaviour of the call if the lock is busy: return an `error`, the default, or `skip` the body.
        pub const on_busy: () = ();
        /// The effect of a lost lease on the body: `cancel`, the default, or `continue`.
        pub const on_lost: () = ();
        /// The effect of a dropped caller on the body: `cancel` drops it, `finish` lets it continue. Defaults to `cancel`
        /// in `distributed_lock`, and to `finish` in `run_once`.
        pub const on_drop: () = ();
        /// How long repeats get the result: `"24h"`, or a `Duration`; 100 ms to 365 days.
        pub const keep: () = ();
        /// The content of the request, as an expression that is `Serialize`. A different request with the same key is
        /// refused.
        pub const fingerprint: () = ();
        /// A path or closure that turns a `LockError` into the return value.
        pub const on_error: () = ();
        /// The release: `awaited` before the call returns, or sent in the `background`. Defaults to the manager's choice,
        /// which is `awaited`.
        pub const release: () = ();
        /// The name of the `Lease` in the body, for example to read its fencing token.
        pub const lease: () = ();
        /// The manager, or a value that implements `LockSource`. Defaults to the task's manager, then to the global one.
        pub const locks: () = ();
    }
}
