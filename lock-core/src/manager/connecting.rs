//! From a builder to a manager: the store, the thread, and the first connection.

use std::sync::Arc;
#[cfg(feature = "redis")]
use std::{error::Error as _, sync::Weak, time::Duration};

use crate::{
    error::LockError,
    lock::{
        context::{Context, outage::Outage},
        registry::Registry,
    },
    manager::{LockManager, ManagerState, builder::LockManagerBuilder},
    runtime::{clock::Clock, executor::Executor, timer::Timer},
    store::{
        Store, grants::Grants, holder_label::HolderLabel, memory::MemoryStore,
        owner_token::OwnerTokens,
    },
    telemetry,
};
#[cfg(feature = "redis")]
use crate::{
    runtime::jitter::jittered,
    store::{
        StoreFuture,
        redis::{Named, Replicas, Scope, Security, Settings},
    },
};

/// For one server, unless the builder says otherwise.
#[cfg(feature = "redis")]
const FAIL_FAST_AFTER: Duration = Duration::from_secs(5);

/// The pause between two tries of a first connection.
#[cfg(feature = "redis")]
const GREETING_PAUSE: Duration = Duration::from_secs(1);

/// Why locks on several independent servers are exclusive only.
#[cfg(feature = "redis")]
const EXCLUSIVE_BY_VOTES: &str = "several independent servers (Redlock) agree on one holder of a lock, neither on several nor on the result of a run. Acquire it \
     exclusively, or use a manager on one primary, sentinels or a cluster for this lock";

impl LockManagerBuilder {
    /// Connects to a backend; see [`LockManager::connect`] for the urls.
    ///
    /// # Errors
    ///
    /// As [`LockManager::connect`], and [`LockError::Invalid`] if a setting is out of bounds.
    ///
    /// # Cancel safety
    ///
    /// As [`LockManager::connect`].
    #[cfg_attr(
        not(feature = "redis"),
        expect(clippy::unused_async, reason = "with servers, it waits")
    )]
    pub async fn connect(self, url: &str) -> Result<LockManager, LockError> {
        self.check_to_connect()?;
        if url == "memory://" || url == "memory:" {
            return Ok(self.in_memory());
        }
        #[cfg(not(feature = "redis"))]
        return Err(LockError::invalid(
            "this build of lock-core knows `memory://` only: switch its feature `redis` on for servers",
        ));
        #[cfg(feature = "redis")]
        match &split_list(url)[..] {
            [_] => self.connect_to_server(Named::Url(url.to_owned())).await,
            urls => self.redlock(urls).await,
        }
    }

    /// Connects to several independent servers; see [`LockManager::redlock`].
    ///
    /// # Errors
    ///
    /// As [`LockManager::redlock`], and [`LockError::Invalid`] if a setting is out of bounds.
    ///
    /// # Cancel safety
    ///
    /// As [`LockManager::connect`].
    #[cfg(feature = "redis")]
    pub async fn redlock<U>(self, urls: U) -> Result<LockManager, LockError>
    where
        U: IntoIterator<Item: AsRef<str>>,
    {
        let urls = urls.into_iter().map(|url| url.as_ref().trim().to_owned());
        self.connect_to_servers(urls.map(Named::Url).collect())
            .await
    }

    /// Makes a manager for locks inside this process; see [`LockManager::in_memory`].
    ///
    /// Settings that are out of bounds are reported by the first acquire.
    #[must_use]
    pub fn in_memory(self) -> LockManager {
        let clock = Clock::tokio();
        let grants = Arc::<Grants>::default();
        let store = Arc::new(MemoryStore::new(clock.clone(), grants.clone()));
        self.with_the_caller(store, grants, clock)
    }

    /// Makes a manager for locks inside this process, and a handle that injects faults; see
    /// [`LockManager::in_memory_with_faults`].
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn in_memory_with_faults(self) -> (LockManager, crate::testing::Faults) {
        use crate::testing::{Faults, faulty_store::FaultyStore};

        let clock = Clock::tokio();
        let grants = Arc::<Grants>::default();
        let timeout = self.timing.command_timeout;
        let store = Arc::new(FaultyStore::new(clock.clone(), timeout, grants.clone()));
        let manager = self.with_the_caller(store.clone(), grants, clock);
        let faults = Faults::new(manager.inner.registry.clone(), store);
        (manager, faults)
    }

    #[cfg(feature = "redis")]
    pub(super) async fn connect_to_server(
        mut self,
        server: Named,
    ) -> Result<LockManager, LockError> {
        use crate::store::redis::RedisStore;

        let grants = Arc::<Grants>::default();
        let executor = start_thread()?;
        let store = RedisStore::new(&server, &self.settings(&executor)?, grants.clone())?;
        if store.is_one_server() {
            self.fail_fast_after.get_or_insert(FAIL_FAST_AFTER);
        }
        let greet = {
            let store = store.clone();
            move || store.greet_for_caller()
        };
        self.on_a_thread(executor, Arc::new(store), grants, greet)
            .await
    }

    // Not generic: it is built once, and not in each crate that calls it.
    #[cfg(feature = "redis")]
    async fn connect_to_servers(mut self, servers: Vec<Named>) -> Result<LockManager, LockError> {
        use crate::store::redlock::{RedlockStore, restart_quarantine};

        let max_ttl = *self
            .defaults
            .max_ttl
            .get_or_insert(restart_quarantine::DEFAULT_MAX_TTL);
        self.defaults.only_exclusive = Some(EXCLUSIVE_BY_VOTES);
        self.check_to_connect()?;
        let quarantine = self
            .quarantine
            .unwrap_or_else(|| restart_quarantine::needed_for(max_ttl));
        if self.replicas.is_some() {
            return Err(LockError::invalid(
                "min_replicas_acked is for a primary with replicas, and several independent servers have none",
            ));
        }
        let executor = start_thread()?;
        let store = RedlockStore::new(&servers, &self.settings(&executor)?, quarantine)?;
        let greet = {
            let store = store.clone();
            move || store.greet()
        };
        self.on_a_thread(executor, Arc::new(store), Arc::default(), greet)
            .await
    }

    #[cfg(feature = "redis")]
    fn settings(&self, executor: &Executor) -> Result<Settings, LockError> {
        if let Some(Replicas { least, within }) = self.replicas {
            let (shortest, longest) = (Duration::from_millis(1), Duration::from_secs(60));
            if least == 0 || within < shortest || within > longest {
                return Err(LockError::invalid(format!(
                    "min_replicas_acked is {least} within {within:?}: choose one at least, and between {shortest:?} and \
                     {longest:?}"
                )));
            }
        }
        Ok(Settings {
            executor: executor.clone(),
            timing: self.timing,
            security: Security {
                client: self.through.clone(),
                #[cfg(feature = "tls")]
                given: self.tls.clone(),
                #[cfg(feature = "tls")]
                trust: std::sync::OnceLock::new(),
            },
            access: self.access.clone(),
            label: self.label.as_deref().map(Into::into),
            replicas: self.replicas,
            scope: Scope {
                prefix: self.prefix().to_owned(),
                check_key: self
                    .check_key
                    .as_ref()
                    .map(|key| format!("{}{key}", self.prefix())),
            },
        })
    }

    /// A manager that works on its caller's runtime.
    fn with_the_caller(
        self,
        store: Arc<dyn Store>,
        grants: Arc<Grants>,
        clock: Clock,
    ) -> LockManager {
        self.finish(store, grants, Executor::Caller, Timer::of_the_caller(clock))
    }

    /// A manager with a thread of its own, and its first connection.
    #[cfg(feature = "redis")]
    async fn on_a_thread(
        self,
        executor: Executor,
        store: Arc<dyn Store>,
        grants: Arc<Grants>,
        greet: impl Fn() -> StoreFuture<()> + Send + Sync + 'static,
    ) -> Result<LockManager, LockError> {
        let timer = Timer::of_a_thread(Clock::Boot);
        executor.spawn(timer.ring());
        let is_lazy = self.is_lazy;
        let manager = self.finish(store, grants, executor, timer);
        match manager.context().ask(|_| greet()).await {
            Err(LockError::Unavailable { source, .. }) if is_lazy => {
                tracing::warn!(%source, "the backend is not reached yet: connecting is tried again in the background");
                let registry = Arc::downgrade(&manager.inner.registry);
                let later = greet_later(registry, greet);
                manager.context().executor.spawn(later);
            }
            greeted => greeted?,
        }
        Ok(manager)
    }

    fn finish(
        self,
        store: Arc<dyn Store>,
        grants: Arc<Grants>,
        executor: Executor,
        timer: Timer,
    ) -> LockManager {
        let defaults = self.check().map(|()| self.defaults);
        let label = HolderLabel::new(self.label.as_deref());
        telemetry::describe();
        let context = Arc::new(Context::new(
            store,
            grants,
            OwnerTokens::of(&label),
            executor,
            timer,
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

/// Tries the first connection about once a second, as long as the manager exists.
#[cfg(feature = "redis")]
async fn greet_later(registry: Weak<Registry>, greet: impl Fn() -> StoreFuture<()>) {
    while let Some(pause) = registry.upgrade().map(|registry| {
        let (timer, clock) = (registry.context.timer.clone(), &registry.context.clock);
        let until = clock.now().after(jittered(GREETING_PAUSE));
        async move { timer.sleep_until(until).await }
    }) {
        pause.await;
        match greet().await {
            Ok(()) => return,
            Err(failure) if failure.is_transient() => {}
            Err(failure) => {
                let error = LockError::from(failure);
                tracing::error!(%error, source = error.source(), "the backend refuses this manager");
                return;
            }
        }
    }
}

#[cfg(feature = "redis")]
fn start_thread() -> Result<Executor, LockError> {
    Executor::start_thread().map_err(LockError::unavailable)
}

/// The urls of a list, each with its scheme. A comma before a scheme separates two urls; any other comma belongs to a password.
#[cfg(feature = "redis")]
fn split_list(text: &str) -> Vec<&str> {
    let mut urls = Vec::new();
    let mut start = 0;
    for (comma, _) in text.match_indices(',') {
        let rest = text[comma + 1..].trim_start();
        let begins_with_a_scheme = rest.split_once("://").is_some_and(|(scheme, _)| {
            scheme.starts_with(|c: char| c.is_ascii_alphabetic())
                && scheme
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
        });
        if begins_with_a_scheme {
            urls.push(text[start..comma].trim());
            start = comma + 1;
        }
    }
    urls.push(text[start..].trim());
    urls
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use super::*;

    #[test]
    fn a_comma_before_a_scheme_parts_two_urls() {
        assert_eq!(split_list("redis://a"), ["redis://a"]);
        assert_eq!(
            split_list("redis://a:1, valkey://b,redis+unix:///c"),
            ["redis://a:1", "valkey://b", "redis+unix:///c"]
        );
        let password = "redis://:p,w@a,redis://:p,://@b";
        assert_eq!(split_list(password), ["redis://:p,w@a", "redis://:p,://@b"]);
        assert_eq!(split_list(""), [""]);
    }
}
