//! The run of a body under a lock.

use std::future::{Future, poll_fn};

use tracing::Instrument as _;

use crate::{
    backend::RunResult,
    driver::{
        hold::{Admission, Hold, while_held},
        reentry::{self, Turn},
    },
    engine::{terms::Terms, transition::unasked_result},
    error::LockError,
    guard::LockGuard,
    key::{IntoLockKey, LockKey},
    lease::Lease,
    manager::{
        LockManager,
        acquire::AcquireFuture,
        wanted_keys::{KeyList, WantedKeys},
    },
    options::{LockOptions, OnLost, ReleaseMode},
};

impl LockManager {
    /// Runs a body while holding a lock, and drops the body when the lease is lost.
    ///
    /// The attribute does the same with one key. The body gets the lease, which has its fencing token;
    /// [`current_lease`](crate::manager::default_manager::current_lease) also returns it. The body is never polled after
    /// the lease has ended, unless the options say [`OnLost::Continue`]. Before this call returns, it releases the lock and
    /// waits for the reply. With [`release_in_background`](LockOptions::release_in_background), it does not wait.
    ///
    /// Inside the body, acquiring the same key again succeeds at once. Several branches of the body may call `run` with the
    /// body's key at the same time. These calls take turns in the order in which they asked, and each waits as long as its
    /// options allow. Calls that ask for the key in [`shared`](LockOptions::shared) mode run together.
    ///
    /// The value of a body that has ended is returned even if the lease was lost in its last step, in which case a warning
    /// is logged. To prevent side effects of such a step, use the fencing token.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`acquire`](Self::acquire), and [`LockError::Lost`] if the lease was lost while the body ran.
    ///
    /// # Panics
    ///
    /// Panics only if the body does, and releases the lock in that case, too.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future first drops the body, and then releases the lock in the background, within one round trip.
    /// Dropping it during the wait has the same effect as with [`acquire`](Self::acquire).
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lock_core::LockError> {
    /// # use lock_core::{LockManager, LockOptions};
    /// # let manager = LockManager::in_memory();
    /// let total = manager
    ///     .run("report", LockOptions::default(), |lease| async move {
    ///         println!("writing with fencing token {}", lease.fencing_token());
    ///         42
    ///     })
    ///     .await?;
    /// # assert_eq!(total, 42);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "leader election")]
    pub async fn run<T, F, Fut>(
        &self,
        key: impl IntoLockKey,
        options: LockOptions,
        body: F,
    ) -> Result<T, LockError>
    where
        F: FnOnce(Lease) -> Fut,
        Fut: Future<Output = T>,
    {
        let wanted = self.wanted(key.into_lock_key(), &options)?;
        self.run_wanted(wanted, body, NOT_STORED, release_now).await
    }

    /// Runs a body under the lock of its keys, or returns the value of an earlier run.
    ///
    /// After the body has returned its value, `then` either returns the guard, which releases the lock, or keeps it.
    pub(crate) async fn run_wanted<F: Future, S: Storing<F::Output>>(
        &self,
        WantedKeys { list, terms }: WantedKeys,
        body: impl FnOnce(Lease) -> F,
        store: S,
        then: impl FnOnce(F::Output, Finished<'_>) -> (F::Output, Option<LockGuard>),
    ) -> Result<F::Output, LockError> {
        let registry = &self.inner.registry;
        let turns = reentry::acquire_turns(registry, list.all(), terms.wait).await?;
        match self.acquire_keys(list, terms).await? {
            Admission::Held(hold) => self.run_under(hold, turns, terms, body, store, then).await,
            Admission::Done(result) => store.recall(&result),
        }
    }

    pub(super) async fn acquire_keys(
        &self,
        keys: KeyList,
        terms: Terms,
    ) -> Result<Admission, LockError> {
        match keys {
            KeyList::One([(key, _)]) => {
                let mut acquire = AcquireFuture::new(self, key, Ok(terms));
                poll_fn(|context| acquire.poll_admission(context)).await
            }
            // Boxed, so that the future of a call with one key stays small.
            KeyList::Several(keys) => {
                let hold = Box::pin(self.acquire_several(&keys, terms)).await;
                let is_wanted = |_: &_, other: &_| keys.iter().any(|(key, _)| key == other);
                hold.map(Admission::Held)
                    .map_err(|error| self.refused(error, is_wanted))
            }
        }
    }

    pub(super) async fn run_under<F: Future, S: Storing<F::Output>>(
        &self,
        hold: Hold,
        turns: Vec<Turn>,
        terms: Terms,
        body: impl FnOnce(Lease) -> F,
        store: S,
        then: impl FnOnce(F::Output, Finished<'_>) -> (F::Output, Option<LockGuard>),
    ) -> Result<F::Output, LockError> {
        let guard = LockGuard::new(hold);
        let body = body(guard.lease());
        // The body is bound after the guard, so it is dropped first if there is a panic or this future is dropped.
        let leases = guard.hold().leases();
        let body = reentry::scope(leases.clone(), &turns, body);
        let body = body.instrument(leases.first().span());
        let value = match terms.on_lost {
            OnLost::Cancel => while_held(leases, body).await?,
            OnLost::Continue => body.await,
        };
        drop(turns);
        // There must be no await between the end of the body and the release, so that this future cannot be dropped between
        // them.
        let (value, result) = store.result_of(value);
        let terms = &terms;
        let (value, guard) = then(value, Finished { guard, terms });
        let Some(guard) = guard else {
            return Ok(value);
        };
        // The value is returned even if the lease turns out to be lost, because an error would make the caller repeat work
        // that is finished.
        match terms.release {
            ReleaseMode::Awaited => release::<F::Output, S>(guard, result).await,
            ReleaseMode::InBackground => self.release_in_background(guard),
        }
        Ok(value)
    }

    /// Hands the release to the connection, or to the manager's thread.
    fn release_in_background(&self, guard: LockGuard) {
        let context = self.context();
        let open = context.in_background.open();
        context.executor.start_patiently(async move {
            release::<(), NotStored>(guard, None).await;
            drop(open);
        });
    }
}

/// Decides whether and how the value of a body is stored for later calls.
pub trait Storing<T> {
    /// Restores the value from the result of an earlier run.
    ///
    /// # Errors
    ///
    /// Fails if the result is not for this call, or cannot be decoded.
    fn recall(&self, result: &[u8]) -> Result<T, LockError>;

    /// Returns the value, and the result that the release must store, if there is one.
    fn result_of(&self, value: T) -> (T, Option<RunResult>);

    /// Counts a body that has run. `is_lost` is `true` if its result could not be stored.
    fn count(_key: &LockKey, _is_lost: bool) {}
}

/// The [`Storing`] of a plain lock, which stores nothing. It is a pair because the `Storing` of a run is one, which
/// consists of the functions for its value and its options.
pub(crate) type NotStored = ((), ());

pub(super) const NOT_STORED: NotStored = ((), ());

impl<T> Storing<T> for NotStored {
    fn recall(&self, _: &[u8]) -> Result<T, LockError> {
        Err(unasked_result())
    }

    fn result_of(&self, value: T) -> (T, Option<RunResult>) {
        (value, None)
    }
}

/// The lock of a body that has returned its value.
#[derive(Debug)]
pub struct Finished<'a> {
    pub(crate) guard: LockGuard,
    #[allow(dead_code, reason = "read only by the integrations of frameworks")]
    pub(crate) terms: &'a Terms,
}

/// The `then` of a body whose value does not need the lock any more: it releases the lock.
pub fn release_now<T>(value: T, lock: Finished<'_>) -> (T, Option<LockGuard>) {
    (value, Some(lock.guard))
}

/// Releases the lock of a body that has ended. A failure is only logged, so that the caller still gets the body's value.
async fn release<T, S: Storing<T>>(guard: LockGuard, result: Option<RunResult>) {
    let (key, is_stored) = (guard.key().clone(), result.is_some());
    let released = guard.release_with(result).await;
    if let Err(error) = &released {
        let lost = if is_stored {
            "the body has run, but its result could not be stored: a repeat may run it again"
        } else {
            "the body has ended, but its lock could not be released"
        };
        tracing::warn!(key = %key.shown(), %error, "{lost}");
    }
    S::count(&key, is_stored && released.is_err());
}
