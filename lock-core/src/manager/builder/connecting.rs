//! Turns a builder into a manager: the steps for all managers, and for the backend in memory.

use std::sync::Arc;

use crate::{
    backend::{Backend, grants::Grants, memory::MemoryBackend, owner_token::OwnerTokens},
    driver::{context::Context, outage::Outage, registry::Registry},
    error::LockError,
    manager::{LockManager, ManagerState, builder::LockManagerBuilder},
    runtime::{clock::Clock, executor::Executor},
    telemetry,
};

impl LockManagerBuilder {
    /// Connects to a backend; see [`LockManager::connect`] for the urls.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`LockManager::connect`], and [`LockError::Invalid`] if a setting is out of bounds.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has the same effect as with [`LockManager::connect`].
    #[cfg_attr(
        not(feature = "redis"),
        expect(clippy::unused_async, reason = "with servers, it awaits")
    )]
    pub async fn connect(self, url: &str) -> Result<LockManager, LockError> {
        self.check_to_connect()?;
        if url == "memory://" || url == "memory:" {
            // Logged only here: a program calls `in_memory` on purpose, but the url may be a mistake in its configuration.
            tracing::info!(
                "connected to `memory://`: its locks exclude only tasks of this process"
            );
            return Ok(self.in_memory());
        }
        #[cfg(not(feature = "redis"))]
        return Err(LockError::invalid(
            "this build of lock-core supports only `memory://`: enable its feature `redis` to use servers",
        ));
        #[cfg(feature = "redis")]
        self.connect_to_servers_of(url).await
    }

    /// Creates a manager for locks inside this process; see [`LockManager::in_memory`].
    ///
    /// Settings that are out of bounds are reported by the first acquire.
    #[must_use]
    pub fn in_memory(self) -> LockManager {
        let clock = Clock::tokio();
        let grants = Arc::<Grants>::default();
        let backend = Arc::new(MemoryBackend::new(clock.clone(), grants.clone()));
        self.finish(backend, grants, Executor::Caller, clock)
    }

    /// Creates a manager for locks inside this process, and a handle that injects faults; see
    /// [`LockManager::in_memory_with_faults`].
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn in_memory_with_faults(self) -> (LockManager, crate::testing::Faults) {
        use crate::testing::{Faults, faulty_backend::FaultyBackend};

        let clock = Clock::tokio();
        let grants = Arc::<Grants>::default();
        let timeout = self.timing.command_timeout;
        let backend = Arc::new(FaultyBackend::new(clock.clone(), timeout, grants.clone()));
        let manager = self.finish(backend.clone(), grants, Executor::Caller, clock);
        let faults = Faults::new(manager.inner.registry.clone(), backend);
        (manager, faults)
    }

    /// Creates the manager. The clock must be that of the machine if the manager has its own thread.
    pub(super) fn finish(
        mut self,
        backend: Arc<dyn Backend>,
        grants: Arc<Grants>,
        executor: Executor,
        clock: Clock,
    ) -> LockManager {
        let mut defaults = self.check().map(|()| self.defaults);
        if let Ok(defaults) = &mut defaults {
            defaults.only_exclusive = backend.traits().only_exclusive;
        }
        self.limits.prefetches = backend.traits().prefetches;
        telemetry::figures::describe();
        let context = Arc::new(Context::new(
            backend,
            grants,
            OwnerTokens::of(self.label.as_deref()),
            executor,
            clock,
            self.timing,
            Outage::new(self.fail_fast_after),
        ));
        LockManager {
            inner: Arc::new(ManagerState {
                registry: Registry::new(context, self.prefix().to_owned(), self.limits),
                defaults,
            }),
        }
    }
}
