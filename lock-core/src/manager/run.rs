//! Running a body under a lock.

use std::future::Future;

use tracing::Instrument as _;

use crate::{
    error::LockError,
    guard::LockGuard,
    key::LockKey,
    lease::Lease,
    lock::{
        hold::while_held,
        key_state::transition::terms::{Terms, deadline},
        reentry::{self, Turns},
    },
    manager::{
        LockManager,
        acquire::AcquireFuture,
        wanted::{KeyList, WantedKeys},
    },
    mode::Mode,
    options::{OnLost, ReleaseMode, Wait},
};

impl LockManager {
    /// `run`, where `then` returns the guard to be released, or keeps it, after the body has returned its value.
    pub(crate) async fn run_wanted<F: Future>(
        &self,
        wanted: WantedKeys,
        body: impl FnOnce(Lease) -> F,
        then: impl FnOnce(F::Output, Finished<'_>) -> (F::Output, Option<LockGuard>),
    ) -> Result<F::Output, LockError> {
        let terms = wanted.terms;
        let turns = self.take_turns(wanted.list.all(), terms.wait).await?;
        let guard = self.take(wanted).await?;
        self.run_under(guard, turns, terms, body, then).await
    }

    pub(super) async fn take(&self, wanted: WantedKeys) -> Result<LockGuard, LockError> {
        let terms = wanted.terms;
        match wanted.list {
            KeyList::One([(key, _)]) => AcquireFuture::new(self, key, Ok(terms)).await,
            // In a box, so that a call with one key stays small.
            KeyList::Several(keys) => Box::pin(self.take_all(&keys, terms)).await,
        }
    }

    /// Waits until no other branch of the running body is in a call with one of these keys. If the body does not hold all of the
    /// keys, this neither waits nor allocates. The keys are then waited for, or refused, as without a body.
    pub(super) async fn take_turns(
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
        let deadline = deadline(wait, self.context().now_in_this_process()?);
        // In a box, so that a call outside of a body stays small.
        Box::pin(reentry::take_turns(registry, keys, wait, deadline)).await
    }

    pub(super) async fn run_under<F: Future>(
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
