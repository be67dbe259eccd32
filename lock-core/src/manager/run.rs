//! Running a body under a lock.

use std::future::Future;

use tracing::Instrument as _;

use crate::{
    driver::{
        hold::while_held,
        reentry::{self, Turns},
    },
    engine::terms::{Terms, deadline},
    error::LockError,
    guard::LockGuard,
    key::{IntoLockKey, LockKey},
    lease::Lease,
    manager::{
        LockManager,
        acquire::AcquireFuture,
        wanted_keys::{KeyList, WantedKeys},
    },
    mode::Mode,
    options::{LockOptions, OnLost, ReleaseMode, Wait},
};

impl LockManager {
    /// Runs a body while holding a lock; drops the body when the lease is lost.
    ///
    /// This is what the attribute does with one key. The body gets the lease, for its fencing token;
    /// [`current_lease`](crate::manager::default_manager::current_lease) returns it, too. The body is never polled once the lease has ended, unless the
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

    /// `run`, where `then` returns the guard to be released, or keeps it, after the body has returned its value.
    pub(crate) async fn run_wanted<F: Future>(
        &self,
        wanted: WantedKeys,
        body: impl FnOnce(Lease) -> F,
        then: impl FnOnce(F::Output, Finished<'_>) -> (F::Output, Option<LockGuard>),
    ) -> Result<F::Output, LockError> {
        let terms = wanted.terms;
        let turns = self.acquire_turns(wanted.list.all(), terms.wait).await?;
        let guard = self.acquire_wanted(wanted).await?;
        self.run_under(guard, turns, terms, body, then).await
    }

    pub(super) async fn acquire_wanted(&self, wanted: WantedKeys) -> Result<LockGuard, LockError> {
        let terms = wanted.terms;
        match wanted.list {
            KeyList::One([(key, _)]) => AcquireFuture::new(self, key, Ok(terms)).await,
            // In a box, so that a call with one key stays small.
            KeyList::Several(keys) => Box::pin(self.acquire_several(&keys, terms)).await,
        }
    }

    /// Waits until no other branch of the running body is in a call with one of these keys. If the body does not hold all of the
    /// keys, this neither waits nor allocates. The keys are then waited for, or refused, as without a body.
    pub(super) async fn acquire_turns(
        &self,
        keys: &[(LockKey, Mode)],
        wait: Wait,
    ) -> Result<Turns, LockError> {
        let registry = &self.inner.registry;
        for (key, mode) in keys {
            if reentry::find(registry, key, *mode)?.is_none() {
                return Ok(Turns::default());
            }
        }
        let deadline = deadline(wait, self.context().clock.now());
        // In a box, so that a call outside of a body stays small.
        Box::pin(reentry::acquire_turns(registry, keys, wait, deadline)).await
    }

    pub(crate) async fn run_under<F: Future>(
        &self,
        guard: LockGuard,
        mut turns: Turns,
        terms: Terms,
        body: impl FnOnce(Lease) -> F,
        then: impl FnOnce(F::Output, Finished<'_>) -> (F::Output, Option<LockGuard>),
    ) -> Result<F::Output, LockError> {
        let body = body(guard.lease());
        // The guard was bound before the body: on a panic and on a drop, the body is dropped first.
        let leases = guard.hold().leases();
        let body = reentry::scope(leases, &mut turns, body).instrument(leases.first().span());
        let value = match terms.on_lost {
            OnLost::Cancel => while_held(leases, body).await?,
            OnLost::Continue => body.await,
        };
        drop(turns);
        let terms = &terms;
        let (value, guard) = then(value, Finished { guard, terms });
        let Some(guard) = guard else {
            return Ok(value);
        };
        // The value is returned even if the lease turns out to be lost: an error would make the caller repeat finished work.
        match terms.release {
            ReleaseMode::Awaited => release(guard).await,
            ReleaseMode::InBackground => self.release_in_background(guard),
        }
        Ok(value)
    }

    /// Hands the release over to the connection, or to the manager's thread.
    fn release_in_background(&self, guard: LockGuard) {
        let context = self.context();
        let open = context.in_background.open();
        context.executor.start_patiently(async move {
            release(guard).await;
            drop(open);
        });
    }
}

/// The lock of a body that has returned its value.
#[derive(Debug)]
pub struct Finished<'a> {
    pub(crate) guard: LockGuard,
    #[allow(dead_code, reason = "only the response of a framework reads it")]
    pub(crate) terms: &'a Terms,
}

/// The `then` of a body with a value that no longer needs the lock: the lock is released.
pub fn release_now<T>(value: T, lock: Finished<'_>) -> (T, Option<LockGuard>) {
    (value, Some(lock.guard))
}

/// Releases the lock of a body that has ended. A failure is only logged, so that the caller still gets the body's value.
async fn release(guard: LockGuard) {
    let key = guard.key().clone();
    if let Err(error) = guard.release().await {
        tracing::warn!(key = %key.shown(), %error, "the body ended, but the release of its lock failed");
    }
}
