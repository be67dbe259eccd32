//! The operators' calls: inspecting and freeing a lock, checking the servers, shutting down.

use std::{sync::Arc, time::Duration};

use crate::{
    backend::{Backend, Reply},
    engine::event::Event,
    error::{LeaseLost, LockError},
    inspect::{Health, Holder, LockInfo, Sighting},
    key::{IntoLockKey, LockKey},
    manager::LockManager,
    mode::RequestKind,
};

impl LockManager {
    /// Returns the state of a lock, such as its holder, and how long the lease lasts.
    ///
    /// Returns `None` if the lock is free, and no result of a body that ran once is stored. The state may be out of date
    /// when it arrives, so do not use it to decide whether to acquire the lock; simply acquire it.
    ///
    /// # Errors
    ///
    /// - [`LockError::Unavailable`] if the backend did not reply;
    /// - [`LockError::Invalid`] if the key is out of bounds, or holds something that is not a lock.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn f(locks: lock_core::LockManager) -> Result<(), lock_core::LockError> {
    /// match locks.inspect("order:42").await? {
    ///     Some(lock) => println!("held by {}", lock.holder),
    ///     None => println!("free"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn inspect(&self, key: impl IntoLockKey) -> Result<Option<LockInfo>, LockError> {
        let key = key.into_lock_key();
        let sighting = self
            .request_about(&key, |store, full_key| store.inspect(full_key))
            .await?;
        Ok(sighting.map(|sighting| self.info(&key, sighting)))
    }

    /// Asks the backend about one key.
    async fn request_about<T: Send + 'static>(
        &self,
        key: &LockKey,
        question: impl FnOnce(&dyn Backend, Arc<str>) -> Reply<T>,
    ) -> Result<T, LockError> {
        self.check_key(key)?;
        let registry = &self.inner.registry;
        let full_key = registry.full_key(key);
        let reply = self
            .context()
            .request(|store| question(store, full_key))
            .await;
        reply.map_err(|error| error.about(key))
    }

    pub(super) fn info(&self, key: &LockKey, sighting: Sighting) -> LockInfo {
        let (tasks, requests) = self.inner.registry.keys.waiters(key);
        let mut named = sighting.leases.iter().map(|lease| lease.process.clone());
        LockInfo {
            remaining: sighting.remaining,
            // The requests of this process are counted in `waiting`. The tasks that wait for them are counted instead.
            waiters: sighting.waiting.saturating_sub(requests) + tasks,
            holder: match (named.next(), sighting.holders) {
                (Some(first), _) => first,
                (None, 0) => Holder::None,
                (None, _) => Holder::Foreign,
            },
            result_kept_for: sighting.result_kept_for,
            mode: sighting.mode,
            holders: sighting.holders,
            other_holders: named.collect(),
            leases: sighting.leases,
            queue: sighting.queue,
        }
    }

    /// Takes a lock away from its holder. Operators use this when they know that the holder is gone.
    ///
    /// A holder that still runs loses its lease at its next renewal. Until then, two holders can act as if each held the
    /// lock.
    ///
    /// # Errors
    ///
    /// - [`LockError::Unavailable`] if the backend did not reply;
    /// - [`LockError::Invalid`] if the key is out of bounds, or holds something that is not a lock, which is then not
    ///   changed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not cancel the request.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lock_core::LockError> {
    /// # let locks = lock_core::LockManager::in_memory();
    /// # let guard = locks.acquire("order:42", lock_core::LockOptions::default()).await?;
    /// locks.force_release("order:42").await?;
    /// assert!(locks.inspect("order:42").await?.is_none());
    /// # drop(guard);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn force_release(&self, key: impl IntoLockKey) -> Result<(), LockError> {
        let key = key.into_lock_key();
        self.request_about(&key, |store, full_key| {
            let registry = &self.inner.registry;
            // Otherwise, a share that this process keeps would continue to admit tasks until its next renewal.
            registry.event(&key, RequestKind::Shared, Event::CloseShares);
            let known = registry
                .context
                .known_tokens
                .of((registry.context.clock_of)(&full_key));
            store.force_release(full_key, known)
        })
        .await
    }

    /// Deletes the result of a body that ran once (feature `once`), so that the next caller runs the body again.
    ///
    /// A body that is running continues, and its result will be stored.
    ///
    /// # Errors
    ///
    /// - [`LockError::Unavailable`] if the backend did not reply;
    /// - [`LockError::Invalid`] if the key is out of bounds.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not cancel the request.
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn operate(locks: lock_core::LockManager) -> Result<(), lock_core::LockError> {
    /// // The payment was reversed by hand, so it may run again.
    /// locks.forget("payment:42").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn forget(&self, key: impl IntoLockKey) -> Result<(), LockError> {
        let key = key.into_lock_key();
        self.request_about(&key, |store, full_key| store.forget(full_key))
            .await
    }

    /// Tries everything that the manager needs from its backend, as a health check.
    ///
    /// On each server that has locks, it acquires, renews and releases a lock with a ttl of 1 s. The key is a random one
    /// under the prefix, or the builder's [`check_key`](crate::manager::builder::LockManagerBuilder::check_key). The check
    /// also reads the settings that can endanger locks. It costs seven commands for each server where scripts run. It
    /// leaves no key behind, and many processes may call it every second. [`Health::warnings`] has the conditions that
    /// may cause trouble later, although everything works now.
    ///
    /// # Errors
    ///
    /// - [`LockError::Invalid`] if the server's user lacks a right that locks need. The error names the right; all of them
    ///   are listed in [operations](crate::guide::operations#rights);
    /// - [`LockError::Invalid`] if the `check_key` holds something that is not a lock;
    /// - [`LockError::Unavailable`] if the backend did not reply, or replied with an error of its own, which is the source.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not cancel the check, which continues and releases its lock. If it cannot, the key expires
    /// within 1 s.
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn f(locks: lock_core::LockManager) -> Result<(), lock_core::LockError> {
    /// let health = locks.check().await?;
    /// for warning in &health.warnings {
    ///     eprintln!("{warning}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "health")]
    pub async fn check(&self) -> Result<Health, LockError> {
        let context = self.context();
        context
            .request(|store| store.check(context.known_tokens.clone()))
            .await
    }

    /// Shuts the manager down in an orderly way, before the process ends.
    ///
    /// New and waiting acquires are refused. Then `shutdown` waits until all guards are gone, for at most
    /// `deadline`. After that, the leases that are still held count as lost, which drops the bodies of [`run`](Self::run)
    /// and of annotated functions. Their locks are released. If a task still keeps a guard, its lock is no longer renewed,
    /// and ends with its ttl. Finally, `shutdown` waits for the releases, including those in the background, for at most
    /// two command time-outs.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the manager closed to new acquires, and changes nothing else. `shutdown` may be called
    /// again.
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn f(locks: lock_core::LockManager) {
    /// use std::time::Duration;
    ///
    /// // After the server has stopped accepting requests, before `main` returns.
    /// locks.shutdown(Duration::from_secs(20)).await;
    /// # }
    /// ```
    pub async fn shutdown(&self, deadline: Duration) {
        let context = self.context();
        self.inner.registry.close();
        if !context.within(deadline, context.held.emptied()).await {
            self.inner.registry.lose_all(LeaseLost::Shutdown);
        }
        let give_up = context.timing.command_timeout.saturating_mul(2);
        if !context.within(give_up, context.emptied()).await {
            tracing::warn!(
                left = context.held.count(),
                "shut down while locks were still held; they end with their ttl"
            );
        }
    }
}
