//! Turns a builder into a manager of servers: the backend, the thread, and the first connection.

use std::{
    error::Error as _,
    sync::{Arc, Weak},
    time::Duration,
};

use crate::{
    backend::{
        Backend, Reply,
        grants::Grants,
        redis::{protocol::redis_store::RedisStore, transport::address::Named},
        redlock::{RedlockBackend, restart_quarantine},
    },
    driver::registry::Registry,
    error::LockError,
    manager::{LockManager, builder::LockManagerBuilder},
    runtime::{clock::Clock, executor::Executor, jitter::jittered},
};

/// The default of [`fail_fast_after`](LockManagerBuilder::fail_fast_after) for one server.
const FAIL_FAST_AFTER: Duration = Duration::from_secs(5);

/// The pause between two tries of a first connection.
const GREETING_PAUSE: Duration = Duration::from_secs(1);

impl LockManagerBuilder {
    /// Connects to several independent servers; see [`LockManager::redlock`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`LockManager::redlock`], and [`LockError::Invalid`] if a setting is out of bounds.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has the same effect as with [`LockManager::connect`].
    pub async fn redlock<U>(self, urls: U) -> Result<LockManager, LockError>
    where
        U: IntoIterator<Item: AsRef<str>>,
    {
        let urls = urls.into_iter().map(|url| url.as_ref().trim().to_owned());
        self.connect_to_servers(urls.map(Named::Url).collect())
            .await
    }

    /// Connects to a server, or to the servers of a list of urls.
    pub(super) async fn connect_to_servers_of(self, urls: &str) -> Result<LockManager, LockError> {
        match &split_list(urls)[..] {
            [_] => self.connect_to_server(Named::Url(urls.to_owned())).await,
            urls if urls.iter().any(|url| url.starts_with("memory://")) => Err(LockError::invalid(
                "`memory://` cannot be one of several servers: use it alone",
            )),
            urls => self.redlock(urls).await,
        }
    }

    pub(super) async fn connect_to_server(
        mut self,
        server: Named,
    ) -> Result<LockManager, LockError> {
        let grants = Arc::<Grants>::default();
        let executor = Executor::start_thread().map_err(LockError::unavailable)?;
        let backend = RedisStore::new(&server, &self.settings(&executor)?, Some(grants.clone()))?;
        if backend.is_one_server() {
            self.fail_fast_after.get_or_insert(FAIL_FAST_AFTER);
        }
        let greeting = backend.clone();
        let greet = move || greeting.greet_for_caller();
        self.on_a_thread(executor, Arc::new(backend), grants, greet)
            .await
    }

    // Not generic, so that it is compiled once, and not in each crate that calls it.
    async fn connect_to_servers(mut self, servers: Vec<Named>) -> Result<LockManager, LockError> {
        let max_ttl = *self
            .defaults
            .max_ttl
            .get_or_insert(restart_quarantine::DEFAULT_MAX_TTL);
        self.check_to_connect()?;
        let quarantine = self
            .servers
            .quarantine
            .unwrap_or_else(|| restart_quarantine::needed_for(max_ttl));
        if self.servers.replicas.is_some() {
            return Err(LockError::invalid(
                "min_replicas_acked needs a primary with replicas, but independent servers have none",
            ));
        }
        let executor = Executor::start_thread().map_err(LockError::unavailable)?;
        let backend = RedlockBackend::new(&servers, self.settings(&executor)?, quarantine)?;
        let greeting = backend.clone();
        let greet = move || greeting.greet();
        self.on_a_thread(executor, Arc::new(backend), Arc::default(), greet)
            .await
    }

    /// Creates a manager with its own thread, and makes its first connection.
    async fn on_a_thread(
        self,
        executor: Executor,
        backend: Arc<dyn Backend>,
        grants: Arc<Grants>,
        greet: impl Fn() -> Reply<()> + Send + Sync + 'static,
    ) -> Result<LockManager, LockError> {
        let is_lazy = self.servers.is_lazy;
        let manager = self.finish(backend, grants, executor, Clock::Boot);
        match manager.context().request(|_| greet()).await {
            Err(LockError::Unavailable { source, .. }) if is_lazy => {
                tracing::warn!(%source, "the backend cannot be reached yet: retrying in the background");
                let registry = Arc::downgrade(&manager.inner.registry);
                let later = greet_later(registry, greet);
                manager.context().executor.spawn(later);
            }
            greeted => greeted?,
        }
        Ok(manager)
    }
}

/// Tries to make the first connection about once a second, for as long as the manager exists.
async fn greet_later(registry: Weak<Registry>, greet: impl Fn() -> Reply<()>) {
    let clock = Clock::Boot;
    while registry.strong_count() > 0 {
        let until = clock.now().after(jittered(GREETING_PAUSE));
        clock.sleep_until(until).await;
        match greet().await {
            Ok(()) => return,
            Err(failure) if failure.is_transient() => {}
            Err(failure) => {
                let error = LockError::from(failure);
                tracing::error!(%error, source = error.source(), "the backend refused this manager");
                return;
            }
        }
    }
}

/// Splits a list into its urls. A comma in front of a scheme separates two urls, while any other comma belongs to a
/// password or to a list of hosts.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_comma_in_front_of_a_scheme_separates_two_urls() {
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
