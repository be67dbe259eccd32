//! The guard, which owns a lease.

use std::fmt;

use crate::{backend::RunResult, driver::hold::Hold, error::LockError, key::LockKey, lease::Lease};

/// Owns a lease, and holds its lock, or the locks of several keys, for as long as it lives.
///
/// # What dropping does, and what it cannot do
///
/// Dropping the guard releases the lock in the background, within one round trip. This covers an early return, `?`, a
/// panic, and a dropped future that owns the guard. It works outside a runtime, and while a runtime shuts down, and it
/// never blocks. Unlike [`release`](Self::release), the drop cannot report a failure. If the process ends right afterwards,
/// the message may not be sent. The lock is then free after the rest of its ttl, unless
/// [`LockManager::shutdown`](crate::manager::LockManager::shutdown) was awaited.
///
/// A guard that is leaked with [`std::mem::forget`] holds its lock for as long as the process lives, or until `max_hold`.
///
/// A guard that is not bound to a name, as with `let _ = …`, is dropped in its own statement, and the code below it runs
/// without the lock. If a guard is dropped unused within a millisecond, a `tracing` event at the level `DEBUG` says
/// `released at once`.
///
/// A bare guard does not stop your code when the lease is lost. Watch [`Lease::lost`], or use
/// [`LockManager::run`](crate::manager::LockManager::run), which drops its body.
///
/// # Examples
///
/// ```
/// # async fn f(locks: lock_core::LockManager) -> Result<(), lock_core::LockError> {
/// use lock_core::LockOptions;
///
/// let guard = locks.acquire("nightly-report", LockOptions::default()).await?;
/// // … the work …
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[doc(alias = "mutex guard")]
#[must_use = "the lock is released as soon as the guard is dropped: bind it, as in `let guard = …`, not `let _ = …`"]
pub struct LockGuard {
    hold: Hold,
}

impl LockGuard {
    pub(crate) fn new(hold: Hold) -> Self {
        Self { hold }
    }

    /// Returns the key that is locked. With several keys, it is the one that was written first.
    #[must_use]
    pub fn key(&self) -> &LockKey {
        &self.hold().leases().first().key
    }

    /// Returns the lease, which can be watched and passed on to other tasks.
    #[must_use]
    pub fn lease(&self) -> Lease {
        Lease::new(self.hold().leases().clone())
    }

    /// Releases the lock, and waits until the backend confirms it. Several keys are released at the same time.
    ///
    /// A guard that re-entered a lease gives up only its own share of it. The last such guard releases the lock.
    ///
    /// # Errors
    ///
    /// - [`LockError::Lost`] if the lease had already ended: another holder may have had the lock in the meantime. With
    ///   several keys, the error names the one that was lost;
    /// - [`LockError::Unavailable`] if the backend did not reply within its time-out. The release continues in the
    ///   background, at most until the lease expires.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the release running in the background, as dropping the guard does.
    pub async fn release(self) -> Result<(), LockError> {
        self.hold.release(None).await
    }

    /// Like `release`, but also stores the result of a run.
    pub(crate) async fn release_with(self, result: Option<RunResult>) -> Result<(), LockError> {
        self.hold.release(result).await
    }

    pub(crate) fn hold(&self) -> &Hold {
        self.hold.leases().first().note_seen();
        &self.hold
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("lease", &self.lease())
            .finish()
    }
}
