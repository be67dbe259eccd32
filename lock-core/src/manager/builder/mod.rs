//! The builder, which creates a manager with settings other than the defaults.

use std::time::Duration;

#[cfg(feature = "redis")]
use crate::backend::redis::{
    topology::{Access, Replicas},
    transport::address::security::Security,
};
#[cfg(doc)]
use crate::manager::LockManager;
use crate::{
    backend::{holder_label, timing::Timing},
    engine::{terms::Defaults, transition::Limits},
    error::LockError,
    key::LockKey,
    options::{ReleaseMode, Wait, check_key, check_prefix},
};

#[cfg(feature = "redis")]
mod builder_for_servers;
mod connecting;
#[cfg(feature = "redis")]
mod connecting_to_servers;
mod constructors;
#[cfg(feature = "redis")]
mod own_client;

// These settings are in this file because rustdoc lists methods in the order of the modules, and most programs need these.

/// Builds a [`LockManager`].
///
/// # Examples
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
///     .wait(Duration::from_secs(5))
///     .command_timeout(Duration::from_millis(500))
///     .max_waiting(1_000)
///     .connect("memory://")
///     .await?;
/// # let _ = manager;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "a builder does nothing until `connect` or `in_memory` is called"]
pub struct LockManagerBuilder {
    prefix: Option<String>,
    label: Option<String>,
    defaults: Defaults,
    timing: Timing,
    limits: Limits,
    /// `None` if it was not set, and `Some(Duration::MAX)` for never.
    fail_fast_after: Option<Duration>,
    /// The key without the prefix.
    check_key: Option<String>,
    #[cfg(feature = "redis")]
    servers: ServerOptions,
}

/// The builder's settings for servers.
#[cfg(feature = "redis")]
#[derive(Clone, Debug, Default)]
struct ServerOptions {
    /// `true` if connecting succeeds even if no server replies.
    is_lazy: bool,
    /// How long one of several servers must have been watched before it votes.
    quarantine: Option<Duration>,
    replicas: Option<Replicas>,
    security: Security,
    access: Access,
}

impl LockManagerBuilder {
    /// Sets the prefix of every key on the server.
    ///
    /// Processes exclude each other only if they use the same prefix, which may have at most 256 bytes. With an empty
    /// prefix, lock keys can collide with other keys of the database. To exclude the holders of another library as well,
    /// set the prefix of its keys, which is listed in [migrating](crate::guide::migrating). Defaults to `lock:`.
    pub fn key_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// Sets the name by which this process is shown as a holder and as a waiter.
    ///
    /// It appears in [`LockManager::inspect`], [`LockManager::list`], [`LockError::held_by`], `lockctl` and the names of
    /// connections. With a label such as `10.0.3.7:8080`, a follower can find the leader.
    ///
    /// A label has 1 to 63 characters: letters, digits and ASCII punctuation without spaces, quotation marks and
    /// backslashes. It is only for display: processes with the same label still exclude each other, but look alike. Every
    /// client that may read the server's keys can read it, so it must not contain a secret. A long label makes the value of
    /// each lock and each entry in a queue longer, while a short one tells an operator less. Defaults to the host and
    /// process id, as in `web-3/4711`.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lock_core::LockError> {
    /// # use lock_core::{LockManager, LockOptions};
    /// let locks = LockManager::builder().label("10.0.3.7:8080").connect("memory://").await?;
    /// let guard = locks.acquire("leader", LockOptions::default()).await?;
    /// let leader = locks.inspect("leader").await?.map(|lock| lock.holder.to_string());
    /// assert_eq!(leader.as_deref(), Some("10.0.3.7:8080"));
    /// # guard.release().await
    /// # }
    /// ```
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Sets the key of the lock that connecting and [`LockManager::check`] try.
    ///
    /// Like a key for [`acquire`](LockManager::acquire), it does not contain the prefix. The lock is acquired, renewed and
    /// released, which reveals a missing right before the first real lock does.
    ///
    /// Set it to one of your keys if the server's user may use only some keys under the prefix, or if the prefix is empty.
    /// With an empty prefix, a random key could belong to another service, so only keys in the reserved name space are
    /// tried, and a warning says so. The lock is held for a few round trips, and for at most 1 s, in which other work for
    /// the same key has to wait. If the lock is busy, the rights are checked anyway. A key that holds something else is
    /// an error. In a cluster, nodes without the key are checked with reserved keys. Locks in memory need no rights,
    /// so nothing is tried.
    ///
    /// Defaults to a random key, `{prefix}__check__:…`, or to none if the prefix is empty.
    pub fn check_key(mut self, key: impl Into<String>) -> Self {
        self.check_key = Some(key.into());
        self
    }

    /// Sets the ttl of locks whose options set none.
    ///
    /// [`LockOptions::new`](crate::options::LockOptions::new) describes the trade-off. Defaults to 10 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.defaults.ttl = ttl;
        self
    }

    /// Sets how long an acquire may wait if its options do not set it.
    ///
    /// With a short wait, [`LockError::Busy`] is returned sooner. With a long wait, more tasks pile up in the wait queues.
    /// Defaults to 10 s.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.defaults.wait = if wait.is_zero() {
            Wait::No
        } else {
            Wait::For(wait)
        };
        self
    }

    /// Makes [`run`](LockManager::run), [`run_all`](LockManager::run_all) and the attribute return as soon as the release
    /// has been handed to the connection.
    ///
    /// A lock then costs its caller only one round trip, which suits services. The next acquire of the same key in this
    /// process is sent after the release. If the server might execute the two in the other order, the acquire first waits
    /// for the reply to the release. This is the case on different connections, on several servers, without scripts, and
    /// after a redirect or a broken connection.
    ///
    /// Releasing in the background has three disadvantages:
    ///
    /// - when the call returns, another process may still find the lock held, for half a round trip. If the connection
    ///   breaks at this moment, the lock stays held until the release has been repeated, at most for the rest of the ttl;
    /// - a process that ends right away may do so before the release is sent, and the lock then stays held for the rest of
    ///   its ttl. Therefore [`shutdown`](LockManager::shutdown) waits for the replies, and dropping the last clone of the
    ///   manager blocks the thread until the replies have arrived, for at most 100 ms. The manager of
    ///   [`set_global`](crate::manager::default_manager::set_global) is never dropped: shut it down before `main` returns;
    /// - if the lease is lost in the last step of the body, this is logged after the call has returned.
    ///
    /// To choose for a single lock, use
    /// [`LockOptions::release_in_background`](crate::options::LockOptions::release_in_background). `release` in the
    /// attribute overrides this in both directions, and [`LockGuard::release`](crate::guard::LockGuard::release) always
    /// waits. Defaults to waiting for the reply to the release.
    pub fn release_in_background(mut self) -> Self {
        self.defaults.release = ReleaseMode::InBackground;
        self
    }

    /// Sets how long it may take to open a connection.
    ///
    /// If the time is too short, a server on a slow network is never reached. If it is too long, a dead address is noticed
    /// late. Defaults to 2 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.timing.connect_timeout = timeout;
        self
    }

    /// Sets how long the reply to one command may take.
    ///
    /// If the time is too short, a slow server counts as dead. If it is too long, a dead server is noticed late. A
    /// connection that has delivered no bytes for two time-outs is replaced. If replies have recently taken longer than
    /// half of this time, the time-out becomes twice as long as they took, but for an acquire at most half of the ttl.
    /// Defaults to 1 s.
    pub fn command_timeout(mut self, timeout: Duration) -> Self {
        self.timing.command_timeout = timeout;
        self
    }

    /// Sets how long an outage must last before a new acquire returns [`LockError::Unavailable`] at once instead of
    /// waiting.
    ///
    /// The time counts from the first request that failed. Acquires that are already waiting continue to wait, and so do
    /// new ones with [`wait_forever`](crate::options::LockOptions::wait_forever). During an outage, one request at a time
    /// probes whether it is over.
    ///
    /// With a short time, requests fail in an outage that would have ended within their wait. With a long time, each
    /// request hangs for its whole wait during an outage, and so does the handler or thread that made it. `Duration::MAX`
    /// means never. Sentinels and clusters need some time to replace a primary, which is set in their own configuration;
    /// the time here should be longer.
    ///
    /// Defaults to 5 s for one url or client, and to never for sentinels, a cluster, several servers and locks in memory.
    pub fn fail_fast_after(mut self, outage: Duration) -> Self {
        self.fail_fast_after = Some(outage);
        self
    }

    /// Sets the average pause between two polls for a lock about which the server sends no message.
    ///
    /// This concerns locks that another library holds, and all locks if the server cannot send messages. Otherwise the
    /// server sends a message when a waiter is granted the lock. A process whose tasks hand such a lock over to each other
    /// does not ask for it during one pause after each batch, so all processes should have about the same value. For each
    /// key, one waiter of a process polls, however many tasks wait. A short pause costs the server more commands, while a
    /// long one leaves such a lock idle for longer. Defaults to 50 ms.
    pub fn polling_pause(mut self, pause: Duration) -> Self {
        self.timing.polling_pause = pause;
        self
    }

    /// Caps how many leases this manager may hold at a time.
    ///
    /// Beyond the cap, an acquire is [`LockError::Unavailable`]. If the cap is too low, valid requests are refused. If it
    /// is too high, one caller can use up all memory. Defaults to 100,000.
    pub fn max_leases(mut self, most: usize) -> Self {
        self.limits.held = most;
        self
    }

    /// Caps how many tasks may wait in this manager at a time.
    ///
    /// Beyond the cap, an acquire is [`LockError::Unavailable`]. If the cap is too low, tasks are refused that would have
    /// been granted the lock. If it is too high, tasks that wait for a holder that hangs can use up all memory. Defaults to
    /// 100,000.
    pub fn max_waiting(mut self, most: usize) -> Self {
        self.limits.waiting = most;
        self
    }

    /// Refuses longer ttls, and longer times of `min_hold`.
    ///
    /// A server that restarts may have forgotten locks. With several servers, it does not vote until it has been watched
    /// for twice this time plus 5 s. With a short maximum, it votes again sooner, while a long maximum allows long ttls.
    /// All processes that use the same locks must have the same value. Defaults to 60 s for several servers, and to no
    /// bound otherwise.
    pub fn max_ttl(mut self, most: Duration) -> Self {
        self.defaults.max_ttl = Some(most);
        self
    }

    fn prefix(&self) -> &str {
        self.prefix.as_deref().unwrap_or("lock:")
    }

    fn check(&self) -> Result<(), LockError> {
        check_prefix(self.prefix())?;
        if let Some(label) = &self.label {
            holder_label::check(label)?;
        }
        self.defaults.check()?;
        self.timing.check()
    }

    /// Like `check`, but also checks the key of the lock that connecting tries.
    fn check_to_connect(&self) -> Result<(), LockError> {
        self.check()?;
        let Some(key) = &self.check_key else {
            return Ok(());
        };
        check_key(self.prefix(), &LockKey::new(key.as_str())).map_err(|error| match error {
            LockError::Invalid { reason, .. } => {
                LockError::invalid(format!("the check_key cannot be used: {reason}"))
            }
            other => other,
        })
    }
}
