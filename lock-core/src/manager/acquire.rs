//! The acquire of a single lock, and its future.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::task::coop;

use crate::{
    driver::{hold::Admission, waiting::WaitFuture},
    engine::terms::{Terms, deadline},
    error::LockError,
    guard::LockGuard,
    key::{IntoLockKey, LockKey},
    manager::LockManager,
    options::LockOptions,
};

impl LockManager {
    /// Acquires a lock, and waits for it as long as the options allow.
    ///
    /// The lock is held, and its lease is renewed, until the returned guard is released or dropped. The guard does not stop
    /// your code when the lease is lost; [`run`](Self::run) does.
    ///
    /// Inside a body that already holds the key, the call succeeds at once with the same lease. A body that holds the key
    /// in shared mode cannot acquire it exclusively, because two such bodies would wait for each other.
    ///
    /// # Errors
    ///
    /// - [`LockError::Busy`] if another holder had the lock during the whole wait;
    /// - [`LockError::Unavailable`] if the backend did not reply, or the manager was shut down or is at a cap;
    /// - [`LockError::Invalid`] if the key or an option is out of bounds, if the key holds something that is not a lock, or
    ///   if the ttl is too short for this server, whose replies take longer than half of it;
    /// - [`LockError::Invalid`] if the mode conflicts with that of the running body, of another holder, or of a waiter: an
    ///   exclusive request inside a shared body, or a request with permits for a key that is used without them, or vice
    ///   versa;
    /// - [`LockError::Lost`] if the running body holds the key by a lease that has been lost.
    ///
    /// If a reply is in flight at the end of the wait, the call may take up to three command time-outs longer (of 1 s by
    /// default). If the server's user may not run scripts, it may take even longer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the position in the wait queue. If the lock had just been granted, it is released in
    /// the background, within one round trip. If the connection is gone too, the release is repeated on the next
    /// connection. If none can be made, the lock ends with its ttl.
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
        reason = "options are passed by value everywhere, so that all calls look alike"
    )]
    pub fn acquire(&self, key: impl IntoLockKey, options: LockOptions) -> AcquireFuture<'_> {
        let key = key.into_lock_key();
        let terms = self.terms(&key, &options);
        AcquireFuture::new(self, key, terms)
    }

    /// Acquires a lock if it is free. Asks once and never waits, whatever the options say.
    ///
    /// Returns `None` if another holder has the lock, or if another task of this process waits for it.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`acquire`](Self::acquire), except for [`LockError::Busy`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has the same effect as with [`acquire`](Self::acquire).
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn f(locks: lock_core::LockManager) -> Result<(), lock_core::LockError> {
    /// use lock_core::LockOptions;
    ///
    /// if let Some(guard) = locks.try_acquire("nightly-report", LockOptions::default()).await? {
    ///     // … no other process writes the report now …
    ///     guard.release().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "try lock")]
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

/// The future of [`LockManager::acquire`]: acquires a key, or shares the lease that the task already holds.
// Written by hand to be small, because thousands of tasks may wait: an `async fn` would keep its arguments as they were
// passed, and store the future that it awaits twice. The type is named because an opaque one would contain the type of the
// key, and the compiler would then report an error about that type three times.
#[must_use = "futures do nothing unless polled"]
pub struct AcquireFuture<'a> {
    manager: &'a LockManager,
    state: AcquireState,
}

enum AcquireState {
    /// Not started yet. Reentry considers the leases of the task that polls first, not of the task that created the future.
    New(LockKey, Result<Terms, LockError>),
    Waiting(WaitFuture),
    Finished,
}

impl<'a> AcquireFuture<'a> {
    pub(crate) fn new(
        manager: &'a LockManager,
        key: LockKey,
        terms: Result<Terms, LockError>,
    ) -> Self {
        Self {
            manager,
            state: AcquireState::New(key, terms),
        }
    }

    /// Polls the wait, which may end with the result of a run instead of a lease.
    pub(crate) fn poll_admission(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Admission, LockError>> {
        // A lock that is free at every poll must not let one task starve the others of its runtime.
        let coop = ready!(coop::poll_proceed(context));
        let result = ready!(self.poll_once(context));
        coop.made_progress();
        self.state = AcquireState::Finished;
        Poll::Ready(result.map_err(|error| self.manager.refused(error, LockKey::eq)))
    }

    fn poll_once(&mut self, context: &mut Context<'_>) -> Poll<Result<Admission, LockError>> {
        if let AcquireState::New(key, terms) = &self.state {
            let terms = terms.clone()?;
            let wanted = [(key.clone(), terms.mode)];
            if let Some(hold) = self.manager.held_or_checked(&wanted)? {
                return Poll::Ready(Ok(Admission::Held(hold)));
            }
            let until = deadline(terms.wait, self.manager.context().clock.now());
            let waker = context.waker();
            let wait = self.manager.join_queue(key, terms, until, waker)?;
            self.state = AcquireState::Waiting(wait);
        }
        let AcquireState::Waiting(wait) = &mut self.state else {
            panic!("`AcquireFuture` polled after completion");
        };
        let admission = ready!(Pin::new(wait).poll(context))?;
        if let Admission::Held(hold) = &admission {
            hold.begin();
        }
        Poll::Ready(Ok(admission))
    }
}

impl Future for AcquireFuture<'_> {
    type Output = Result<LockGuard, LockError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_admission(context)
            .map(|admission| admission?.into_hold().map(LockGuard::new))
    }
}

impl fmt::Debug for AcquireFuture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcquireFuture").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use crate::{manager::LockManager, options::LockOptions};

    #[tokio::test]
    async fn a_waiting_task_is_small() {
        let manager = LockManager::in_memory();
        let acquire = manager.acquire("k", LockOptions::default());
        assert!(size_of_val(&acquire) <= 128, "{}", size_of_val(&acquire));
        let guard = acquire.await.expect("free");
        let release = guard.release();
        assert!(size_of_val(&release) <= 176, "{}", size_of_val(&release));
        release.await.expect("held");
    }
}
