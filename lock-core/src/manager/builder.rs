//! Making a manager with settings other than the defaults.

use std::{sync::Arc, time::Duration};

#[cfg(feature = "redis")]
use crate::store::redis::{Access, Credentials, Replicas, Scope, Security, Settings};
#[cfg(feature = "tls")]
use crate::tls::Tls;
use crate::{
    error::LockError,
    key::LockKey,
    lock::{context::Context, key_state::Limits, registry::Registry},
    manager::{LockManager, ManagerState},
    options::{Defaults, Wait, check_key, check_prefix},
    runtime::{clock::Clock, executor::Executor, timer::Timer},
    store::{Store, grants::Grants, memory::MemoryStore, timing::Timing},
    telemetry,
};

/// Builds a [`LockManager`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lock_core::LockError> {
/// use std::time::Duration;
/// use lock_core::LockManager;
///
/// let manager = LockManager::builder()
///     .key_prefix("shop:lock:")
///     .ttl(Duration::from_secs(30))
///     .connect("memory://")
///     .await?;
/// # let _ = manager;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `connect` or `in_memory` is called"]
pub struct LockManagerBuilder {
    prefix: String,
    defaults: Defaults,
    timing: Timing,
    limits: Limits,
    /// Without the prefix.
    check_key: Option<String>,
    /// For several servers: how long one must have been up before it votes.
    #[cfg(feature = "redlock")]
    quarantine: Option<Duration>,
    #[cfg(feature = "redis")]
    access: Access,
    #[cfg(feature = "redis")]
    replicas: Option<Replicas>,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
}

impl Default for LockManagerBuilder {
    fn default() -> Self {
        Self {
            prefix: "lock:".to_owned(),
            defaults: Defaults::default(),
            timing: Timing::default(),
            limits: Limits::default(),
            check_key: None,
            #[cfg(feature = "redlock")]
            quarantine: None,
            #[cfg(feature = "redis")]
            access: Access::default(),
            #[cfg(feature = "redis")]
            replicas: None,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }
}

impl LockManagerBuilder {
    /// Sets the prefix of every key on the server. Defaults to `lock:`.
    ///
    /// Processes exclude each other only if they use the same prefix. With an empty prefix, lock keys can collide with the other
    /// keys of the database. At most 256 bytes. [`KeysOf`](crate::KeysOf) has the prefixes of other libraries, for locks that both
    /// are to respect.
    pub fn key_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets the key of the lock that connecting and [`LockManager::check`] try. Defaults to a random key,
    /// `{prefix}__check__:…`, and to none where the prefix is empty.
    ///
    /// It is a key as for [`acquire`](LockManager::acquire): on the server, the prefix stands before it. The lock is acquired,
    /// renewed and released, so that a missing right is found then, and not by the first lock.
    ///
    /// Name one of your keys if the server's user may use only some keys under the prefix, or if the prefix is empty. With an
    /// empty prefix a random key could belong to another service. Without this setting only keys in the reserved name space are
    /// tried then, and a warning says so. The lock is held for a few round trips, and for 1 s at most. If it is busy, the rights
    /// are tried all the same. Work that waits for the same key waits as long. A key that holds something else is an error. In a
    /// cluster, nodes that do not have the key are tried with reserved keys. Locks in memory have no rights, so nothing is tried.
    pub fn check_key(mut self, key: impl Into<String>) -> Self {
        self.check_key = Some(key.into());
        self
    }

    /// Sets the ttl of locks that set none in their options. Defaults to 10 s.
    ///
    /// See [`LockOptions::new`](crate::LockOptions::new) for what gets worse in each direction.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.defaults.ttl = ttl;
        self
    }

    /// Sets how long an acquire waits if its options do not say. Defaults to 10 s.
    ///
    /// With a short wait, busy is returned sooner. With a long wait, more tasks are in the wait queues.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.defaults.wait = if wait.is_zero() {
            Wait::No
        } else {
            Wait::For(wait)
        };
        self
    }

    /// Sets how long making a connection may take. Defaults to 2 s.
    ///
    /// If it is too short, a server on a slow network is never reached. If it is too long, a dead address is noticed late.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.timing.connect_timeout = timeout;
        self
    }

    /// Sets how long the reply to one command may take. Defaults to 1 s.
    ///
    /// If it is too short, a slow server counts as dead. If it is too long, a dead server is noticed late. A connection that has
    /// delivered no bytes for two of these is replaced.
    pub fn command_timeout(mut self, timeout: Duration) -> Self {
        self.timing.command_timeout = timeout;
        self
    }

    /// Sets how often a waiter polls for a lock of which the server sends no message. Defaults to 50 ms, on average.
    ///
    /// Such a lock is one that another library holds, or any lock if the server cannot send messages. For other locks the server
    /// sends a message when the waiter is granted the lock. One waiter a key and process polls, however many tasks wait. A short
    /// pause costs the server commands; a long one leaves such a lock idle for longer.
    pub fn polling_pause(mut self, pause: Duration) -> Self {
        self.timing.polling_pause = pause;
        self
    }

    /// Caps how many leases this manager may hold at a time. Defaults to 100,000.
    ///
    /// Beyond it an acquire is [`LockError::Unavailable`]. If the cap is too low, valid requests are refused. Without a cap, one
    /// caller can use up all memory.
    pub fn max_leases(mut self, most: usize) -> Self {
        self.limits.held = most;
        self
    }

    /// Caps how many tasks may wait in this manager at a time. Defaults to 100,000.
    ///
    /// Beyond it an acquire is [`LockError::Unavailable`]. If the cap is too low, tasks are refused that would have been granted
    /// the lock. Without a cap, tasks that wait for a lock that hangs gather until memory is full.
    pub fn max_waiting(mut self, most: usize) -> Self {
        self.limits.waiting = most;
        self
    }

    /// Bounds how often a lock is handed on inside this process while other processes wait for it. Defaults to 64.
    ///
    /// A hand-off inside the process costs no message, so a high bound is fast. Other processes wait for that much longer.
    pub fn max_handoffs(mut self, most: u32) -> Self {
        self.limits.handoffs = most;
        self
    }

    /// Bounds for how long a lock is handed on inside this process while other processes wait for it. Defaults to 20 ms.
    ///
    /// As [`max_handoffs`](Self::max_handoffs); the bound that is reached first counts. It is also the interval at which the
    /// server is asked whether other processes wait for a lock that is handed on.
    pub fn max_handoff_time(mut self, most: Duration) -> Self {
        self.limits.handoff_time = most;
        self
    }

    /// Refuses longer ttls, and longer `min_hold`s. Defaults to 60 s for several servers, and to none otherwise.
    ///
    /// One of several servers that restarts may have forgotten locks, so it does not vote until it has been up for twice this time
    /// and 5 s. With a short maximum it votes again sooner; a long one allows long ttls. All processes that share locks must have
    /// the same value.
    pub fn max_ttl(mut self, most: Duration) -> Self {
        self.defaults.max_ttl = Some(most);
        self
    }

    /// Sets for how long one of several servers does not vote after a restart. Defaults to twice
    /// [`max_ttl`](Self::max_ttl) and 5 s.
    ///
    /// For tests, in which the servers have just been started. With a shorter time than the default, two processes can have the
    /// same lock after a server restarted without its data. With a longer time the server stays excluded for longer than needed.
    #[cfg(feature = "redlock")]
    pub fn quarantine(mut self, span: Duration) -> Self {
        self.quarantine = Some(span);
        self
    }

    /// Sets the user and password for the servers; an empty user is the default one. Defaults to those in the url.
    ///
    /// For secrets that are kept apart from the url: here they need no percent-encoding. They take precedence over the url's.
    #[cfg(feature = "redis")]
    pub fn credentials(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.access.server = Some(Credentials::new(user.into(), password.into()));
        self
    }

    /// Sets the user and password for sentinels; an empty user is the default one. Defaults to those in the url's query
    /// (`?sentinel_user=…&sentinel_password=…`), or none.
    #[cfg(feature = "redis")]
    pub fn sentinel_credentials(
        mut self,
        user: impl Into<String>,
        password: impl Into<String>,
    ) -> Self {
        self.access.sentinel = Some(Credentials::new(user.into(), password.into()));
        self
    }

    /// Has an acquire count only once `replicas` replicas have the lock, which may take `within` (by `WAIT`). Defaults to none.
    ///
    /// For a primary that fails over. If fewer acknowledge in time, the lock is released. The acquire is then tried again until
    /// its wait is over, and is [`LockError::Unavailable`] after that. This narrows the window in which a fail-over forgets a
    /// lock, but does not close it: a replica that has not acknowledged may become the primary, and the others keep the lock in
    /// memory, not on disk. Renewals do not wait for replicas. Each acquire costs one more round trip, and one more to the slowest
    /// of the replicas needed. A wait in the queue ends with a request, not with a message alone.
    ///
    /// With too many replicas, one that is down stops all locks. With too short a time, a busy replica does.
    #[cfg(feature = "redis")]
    pub fn min_replicas_acked(mut self, replicas: u32, within: Duration) -> Self {
        self.replicas = Some(Replicas {
            least: replicas,
            within,
        });
        self
    }

    /// Connects to the primary that sentinels know by the name `service`; the hosts are as in `host:26379`.
    ///
    /// The same as [`connect`](Self::connect) with `redis+sentinel://host:26379,host2:26379/service`, for hosts that come as a
    /// list. List all sentinels: one that can be reached is enough.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    ///
    /// As [`LockManager::connect`].
    #[cfg(feature = "redis")]
    pub async fn sentinel<U>(self, service: &str, hosts: U) -> Result<LockManager, LockError>
    where
        U: IntoIterator<Item: AsRef<str>>,
    {
        let service =
            percent_encoding::utf8_percent_encode(service, percent_encoding::NON_ALPHANUMERIC);
        let url = format!("{}/{service}", several("sentinel", hosts)?);
        self.connect(&url).await
    }

    /// Connects to a cluster of which these nodes are a part; the hosts are as in `host:6379`.
    ///
    /// The same as [`connect`](Self::connect) with `redis+cluster://host:6379,host2:6379`, for hosts that come as a list. One node
    /// that can be reached is enough: it reports the others.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    ///
    /// As [`LockManager::connect`].
    #[cfg(feature = "cluster")]
    pub async fn cluster<U>(self, hosts: U) -> Result<LockManager, LockError>
    where
        U: IntoIterator<Item: AsRef<str>>,
    {
        let url = several("cluster", hosts)?;
        self.connect(&url).await
    }

    /// Sets which servers are trusted over TLS, and the certificate of this process. Defaults to [`Tls::new`].
    ///
    /// For `rediss://` and `valkeys://` urls. The other urls of servers on a network are then refused, so that nothing travels
    /// unprotected by mistake. The setters of [`Tls`] say what gets worse in each direction.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Connects to a backend; see [`LockManager::connect`] for the urls.
    ///
    /// # Errors
    ///
    /// As [`LockManager::connect`], and [`LockError::Invalid`] if a setting is out of bounds.
    ///
    /// # Cancel safety
    ///
    /// As [`LockManager::connect`].
    pub async fn connect(self, url: &str) -> Result<LockManager, LockError> {
        self.check()?;
        self.check_the_check_key()?;
        if url == "memory://" || url == "memory:" {
            return Ok(self.in_memory());
        }
        let urls = split_list(url);
        if urls.len() > 1 {
            let urls = urls.into_iter().map(|url| url.trim().to_owned());
            return self.connect_to_servers(urls.collect()).await;
        }
        self.connect_to_server(url).await
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
    #[cfg(feature = "redlock")]
    pub async fn redlock<U>(self, urls: U) -> Result<LockManager, LockError>
    where
        U: IntoIterator<Item: AsRef<str>>,
    {
        let urls = urls.into_iter().map(|url| url.as_ref().trim().to_owned());
        self.connect_to_servers(urls.collect()).await
    }

    /// Makes a manager whose locks are inside this process; see [`LockManager::in_memory`].
    ///
    /// Settings that are out of bounds are reported by the first acquire.
    #[must_use]
    pub fn in_memory(self) -> LockManager {
        let clock = Clock::tokio();
        let store = Arc::new(MemoryStore::new(clock.clone()));
        self.with_the_caller(store, clock)
    }

    /// Makes a manager whose locks are inside this process, and a handle that injects faults; see
    /// [`LockManager::in_memory_with_faults`].
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn in_memory_with_faults(self) -> (LockManager, crate::Faults) {
        use crate::testing::{Faults, faulty_store::FaultyStore};

        let clock = Clock::tokio();
        let store = FaultyStore::new(clock.clone(), self.timing.command_timeout);
        let store = Arc::new(store);
        let manager = self.with_the_caller(store.clone(), clock);
        let faults = Faults::new(manager.inner.registry.clone(), store);
        (manager, faults)
    }

    #[cfg(feature = "redis")]
    async fn connect_to_server(self, url: &str) -> Result<LockManager, LockError> {
        use crate::store::redis::RedisStore;

        let grants = Arc::<Grants>::default();
        let executor = start_thread()?;
        let store = RedisStore::new(url, &self.settings(&executor)?, grants.clone())?;
        let manager = self.on_a_thread(executor, Arc::new(store.clone()), grants);
        manager
            .context()
            .ask(|_| Box::pin(async move { store.greet().await }))
            .await?;
        Ok(manager)
    }

    #[cfg(feature = "redlock")]
    async fn connect_to_servers(mut self, urls: Vec<String>) -> Result<LockManager, LockError> {
        use crate::store::redlock::{RedlockStore, restart_quarantine};

        let max_ttl = *self
            .defaults
            .max_ttl
            .get_or_insert(restart_quarantine::DEFAULT_MAX_TTL);
        self.check()?;
        self.check_the_check_key()?;
        let quarantine = self
            .quarantine
            .unwrap_or_else(|| restart_quarantine::needed_for(max_ttl));
        if self.replicas.is_some() {
            return Err(LockError::invalid(
                "min_replicas_acked is for a primary with replicas, and several independent servers have none",
            ));
        }
        let executor = start_thread()?;
        let store = RedlockStore::new(&urls, &self.settings(&executor)?, quarantine)?;
        let manager = self.on_a_thread(executor, Arc::new(store.clone()), Arc::default());
        manager
            .context()
            .ask(|_| Box::pin(async move { store.greet().await }))
            .await?;
        Ok(manager)
    }

    #[cfg(feature = "tls")]
    fn security(&self) -> Security {
        Security::new(self.tls.clone())
    }

    #[cfg(all(feature = "redis", not(feature = "tls")))]
    #[expect(
        clippy::unused_self,
        reason = "the other build of this function needs it"
    )]
    fn security(&self) -> Security {
        Security::default()
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
            security: self.security(),
            access: self.access.clone(),
            replicas: self.replicas,
            scope: Scope {
                prefix: self.prefix.clone(),
                check_key: self
                    .check_key
                    .as_ref()
                    .map(|key| format!("{}{key}", self.prefix)),
            },
        })
    }

    /// A manager that works on its caller's runtime.
    fn with_the_caller(self, store: Arc<dyn Store>, clock: Clock) -> LockManager {
        let timer = Timer::of_the_caller(clock.clone());
        self.finish(store, Arc::default(), Executor::Caller, clock, timer)
    }

    /// A manager with a thread of its own.
    #[cfg(feature = "redis")]
    fn on_a_thread(
        self,
        executor: Executor,
        store: Arc<dyn Store>,
        grants: Arc<Grants>,
    ) -> LockManager {
        let clock = Clock::Boot;
        let timer = Timer::of_a_thread(clock.clone());
        executor.spawn(timer.ring());
        self.finish(store, grants, executor, clock, timer)
    }

    #[cfg(not(feature = "redis"))]
    #[expect(
        clippy::unused_async,
        reason = "the other build of this function waits"
    )]
    async fn connect_to_server(self, _url: &str) -> Result<LockManager, LockError> {
        Err(LockError::invalid(
            "this build of lock-core knows `memory://` only: switch its feature `redis` on for servers",
        ))
    }

    #[cfg(not(feature = "redlock"))]
    #[expect(
        clippy::unused_async,
        reason = "the other build of this function waits"
    )]
    async fn connect_to_servers(self, _urls: Vec<String>) -> Result<LockManager, LockError> {
        Err(LockError::invalid(
            "several servers with commas between them vote on each lock, which this build of lock-core cannot have them do: \
             switch its feature `redlock` on, or name one server",
        ))
    }

    fn finish(
        self,
        store: Arc<dyn Store>,
        grants: Arc<Grants>,
        executor: Executor,
        clock: Clock,
        timer: Timer,
    ) -> LockManager {
        let defaults = self.check().map(|()| self.defaults);
        telemetry::describe();
        let context = Arc::new(Context::new(
            store,
            grants,
            executor,
            clock,
            timer,
            self.timing,
        ));
        LockManager {
            inner: Arc::new(ManagerState {
                registry: Registry::new(context, self.prefix, self.limits),
                defaults,
            }),
        }
    }

    fn check_the_check_key(&self) -> Result<(), LockError> {
        let Some(key) = &self.check_key else {
            return Ok(());
        };
        check_key(&self.prefix, &LockKey::new(key.as_str())).map_err(|error| match error {
            LockError::Invalid { reason, .. } => {
                LockError::invalid(format!("the check_key cannot be used: {reason}"))
            }
            other => other,
        })
    }

    fn check(&self) -> Result<(), LockError> {
        check_prefix(&self.prefix)?;
        self.defaults.check()?;
        self.timing.check()
    }
}

#[cfg(feature = "redis")]
fn start_thread() -> Result<Executor, LockError> {
    let thread = crate::runtime::io_thread::IoThread::start().map_err(LockError::unavailable)?;
    Ok(Executor::Thread(Arc::new(thread)))
}

/// The url for several hosts, which may come with a scheme.
#[cfg(feature = "redis")]
fn several<U>(kind: &str, hosts: U) -> Result<String, LockError>
where
    U: IntoIterator<Item: AsRef<str>>,
{
    let mut scheme: Option<String> = None;
    let mut list = Vec::new();
    for host in hosts {
        let (own, host) = match host.as_ref().trim().split_once("://") {
            Some((own, host)) => (own, host.to_owned()),
            None => ("redis", host.as_ref().trim().to_owned()),
        };
        if host.contains(['/', '@', '?', '#'])
            || *scheme.get_or_insert_with(|| own.to_owned()) != own
        {
            return Err(LockError::invalid(
                "write each host as in `host:port`, or all of them as in `rediss://host:port`; users and passwords are set by \
                 `credentials`",
            ));
        }
        list.push(host);
    }
    let scheme = scheme.as_deref().unwrap_or("redis");
    Ok(format!("{scheme}+{kind}://{}", list.join(",")))
}

/// The urls of a list, each with its scheme. A comma before a scheme separates two urls; any other comma belongs to a password.
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
