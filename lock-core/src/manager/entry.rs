//! What most programs call: acquiring a lock, and running a body under one.

use std::future::Future;

#[cfg(doc)]
use crate::options::OnLost;
use crate::{
    error::LockError,
    guard::LockGuard,
    key::IntoLockKey,
    lease::Lease,
    manager::{AcquireFuture, LockManager, run::release_now},
    options::LockOptions,
};

impl LockManager {
    /// Acquires a lock, waiting for it as long as the options say.
    ///
    /// The returned guard keeps the lock, and its lease is renewed, until the guard is released or dropped. The guard does not stop
    /// your code when the lease is lost; [`run`](Self::run) does.
    ///
    /// Inside a body that holds the key already, the call succeeds at once with the same lease. A body that holds the key shared
    /// cannot acquire it exclusively: two such bodies would wait for each other.
    ///
    /// # Errors
    ///
    /// - [`LockError::Busy`] if another holder had it during the whole wait;
    /// - [`LockError::Unavailable`] if the backend did not reply, or the manager was shut down or is at a cap;
    /// - [`LockError::Invalid`] if the key or an option is out of bounds, or if the key holds something that is no lock. Also if
    ///   the ttl is too short for this server: its replies take longer than half of it;
    /// - [`LockError::Invalid`] if the running body, another holder or a waiter has the key in a mode that does not allow this one.
    ///   These are an exclusive request inside a shared body, and a request with permits beside one without;
    /// - [`LockError::Lost`] if the running body holds the key by a lease that is lost.
    ///
    /// While a reply is in flight, the call may take longer than its wait, by three command time-outs at most (of 1 s by default).
    /// If the server's user may not run scripts, it may take even longer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the position in the wait queue. If the lock had just been granted, it is released in the
    /// background within one round trip. If the connection is gone too, the lock ends with its ttl.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lock_core::LockError> {
    /// use std::time::Duration;
    /// use lock_core::{LockManager, LockOptions};
    ///
    /// let manager = LockManager::in_memory();
    /// let guard = manager.acquire("order:42", LockOptions::new(Duration::from_secs(10))).await?;
    /// // … only one holder of `order:42` is here at a time …
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    #[expect(
        clippy::needless_pass_by_value,
        reason = "options go by value everywhere, so that each call is written alike"
    )]
    pub fn acquire(&self, key: impl IntoLockKey, options: LockOptions) -> AcquireFuture<'_> {
        let key = key.into_lock_key();
        let terms = self.terms(&key, &options);
        AcquireFuture::new(self, key, terms)
    }

    /// Runs a body while holding a lock; drops the body when the lease is lost.
    ///
    /// This is what the attribute does with one key. The body gets the lease, for its fencing token;
    /// [`current_lease`](crate::current_lease) returns it, too. The body is never polled once the lease has ended, unless the
    /// options say [`OnLost::Continue`]. The lock is released, and the release awaited, before this returns. With
    /// [`release_in_background`](LockOptions::release_in_background), the release is only handed over.
    ///
    /// Inside the body, acquiring the same key again succeeds at once. Several branches of the body may call `run` with the body's
    /// key at the same time. These calls have the key in turn, first come, first served: each waits as long as its options say.
    /// Calls that ask for the key [`shared`](LockOptions::shared) run together.
    ///
    /// The value of a body that ended is returned even if the lease was lost in its last step. A warning is logged then. Side
    /// effects that must not happen in that case need the fencing token.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), and [`LockError::Lost`] if the lease was lost while the body ran.
    ///
    /// # Panics
    ///
    /// Only if the body does; the lock is released then too.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the body first and then releases the lock in the background, within one round trip.
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
        self.run_wanted(wanted, body, release_now).await
    }

    /// Acquires a lock if it is free: asks once, and does not wait, whatever the options say.
    ///
    /// Returns `None` if another holder has it, or if another task of this process waits for it.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), but never [`LockError::Busy`].
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(
        &self,
        key: impl IntoLockKey,
        options: LockOptions,
    ) -> Result<Option<LockGuard>, LockError> {
        match self.acquire(key, options.no_wait()).await {
            Ok(guard) => Ok(Some(guard)),
            Err(error) if error.is_busy() => Ok(None),
            Err(error) => Err(error),
        }
    }
}
