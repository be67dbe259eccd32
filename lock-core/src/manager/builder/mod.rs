//! The builder: creating a manager with settings other than the defaults.

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

// The documentation lists methods in the order of the modules, and these are the ones that most programs call.

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
#[derive(Clone, Debug, Default)]
#[must_use = "a builder does nothing until `connect` or `in_memory` is called"]
pub struct LockManagerBuilder {
    prefix: Option<String>,
    label: Option<String>,
    defaults: Defaults,
    timing: Timing,
    limits: Limits,
    /// `None` means not set, and `Some(Duration::MAX)` never.
    fail_fast_after: Option<Duration>,
    /// Without the prefix.
    check_key: Option<String>,
    #[cfg(feature = "redis")]
    servers: ServerOptions,
}

/// The builder's settings for servers.
#[cfg(feature = "redis")]
#[derive(Clone, Debug, Default)]
struct ServerOptions {
    /// `true` if connecting succeeds without a server that replies.
    is_lazy: bool,
    /// For several servers: for how long a server must have been watched before it votes.
    quarantine: Option<Duration>,
    replicas: Option<Replicas>,
    security: Security,
    access: Access,
}

impl LockManagerBuilder {
    /// Sets the prefix of every key on the server. Defaults to `lock:`.
    ///
    /// Processes exclude each other only if they use the same prefix. With an empty prefix, lock keys can collide with the
    /// other keys of the database. At most 256 bytes. To also exclude the holders of another library, set the prefix of its
    /// keys, which is listed in [migrating](crate::guide::migrating).
    pub fn key_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// Sets the name by which this process is shown as a holder and as a waiter. Defaults to its host and process id, as in
    /// `web-3/4711`.
    ///
    /// It appears in [`LockManager::inspect`], [`LockManager::list`], [`LockError::held_by`], `lockctl` and the names of
    /// connections. So a follower can learn the address of the leader, as in `10.0.3.7:8080`.
    ///
    /// A label has 1 to 63 characters: letters, digits and ASCII punctuation without spaces, quotation marks and backslashes.
    /// It is only shown: processes with the same label still exclude each other, but cannot be told apart. Each client that may
    /// read the server's keys can read it, so it must not be a secret. A long label makes the value of each lock and each entry
    /// in a queue longer. A short one tells an operator less.
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

    /// Sets the key of the lock that connecting and [`LockManager::check`] try. Defaults to a random key,
    /// `{prefix}__check__:…`, and to none where the prefix is empty.
    ///
    /// It is a key as for [`acquire`](LockManager::acquire), so on the server the prefix precedes it. The lock is acquired,
    /// renewed and released, so that a missing right is found at that point, and not by the first lock.
    ///
    /// Name one of your keys if the server's user may use only some keys under the prefix, or if the prefix is empty. With an
    /// empty prefix, a random key could belong to another service. So without this setting, only keys in the reserved name
    /// space are then tried, and a warning says so. The lock is held for a few round trips, and for at most 1 s; work that
    /// waits for the same key waits as long. If the lock is busy, the rights are tried all the same. A key that holds something
    /// else is an error. In a cluster, nodes that do not have the key are tried with reserved keys. Locks in memory need no
    /// rights, so nothing is tried.
    pub fn check_key(mut self, key: impl Into<String>) -> Self {
        self.check_key = Some(key.into());
        self
    }

    /// Sets the ttl of locks whose options set none. Defaults to 10 s.
    ///
    /// [`LockOptions::new`](crate::options::LockOptions::new) describes the trade-off.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.defaults.ttl = ttl;
        self
    }

    /// Sets how long an acquire waits if its options do not set it. Defaults to 10 s.
    ///
    /// With a short wait, [`LockError::Busy`] is returned sooner. With a long wait, more tasks are in the wait queues.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.defaults.wait = if wait.is_zero() {
            Wait::No
        } else {
            Wait::For(wait)
        };
        self
    }

    /// Makes [`run`](LockManager::run), [`run_all`](LockManager::run_all) and the attribute return as soon as the release has
    /// been handed over. Defaults to waiting for the reply to the release.
    ///
    /// For services: a lock then costs its caller one round trip. The next acquire of the same key in this process is sent
    /// after the release. It waits for the reply where the two might be executed in the other order, which can happen on
    /// different connections, on several servers, without scripts, and after a redirect or a broken connection.
    ///
    /// Releasing in the background has three disadvantages:
    ///
    /// - when the call returns, another process may still find the lock held, for half a round trip. If the connection breaks
    ///   at this moment, the lock stays held until the release has been repeated, at most for the rest of the ttl;
    /// - a process that ends at once may end before the release is sent, and the lock is then held for the rest of its ttl.
    ///   Therefore [`shutdown`](LockManager::shutdown) waits for the replies, and dropping the last clone of the manager blocks
    ///   the thread until the replies have arrived, for at most 100 ms. The manager of
    ///   [`set_global`](crate::manager::default_manager::set_global) is never dropped: shut it down before `main` returns;
    /// - if the lease is lost in the last step of the body, this is logged after the call has returned.
    ///
    /// To choose for a single lock, use
    /// [`LockOptions::release_in_background`](crate::options::LockOptions::release_in_background). `release` in the attribute
    /// overrides this in both directions, and [`LockGuard::release`](crate::guard::LockGuard::release) always waits.
    pub fn release_in_background(mut self) -> Self {
        self.defaults.release = ReleaseMode::InBackground;
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
    /// If it is too short, a slow server counts as dead. If it is too long, a dead server is noticed late. A connection that
    /// has delivered no bytes for two time-outs is replaced. If replies have recently taken longer than half of this time, the
    /// time-out becomes twice as long as they took, but for an acquire at most half of the ttl.
    pub fn command_timeout(mut self, timeout: Duration) -> Self {
        self.timing.command_timeout = timeout;
        self
    }

    /// Sets after how long an outage a new acquire returns [`LockError::Unavailable`] at once instead of waiting. Defaults to 5 s
    /// for one url or client, and to never for sentinels, a cluster, several servers and locks in memory.
    ///
    /// The time counts from the first request that failed. Acquires that are already waiting continue to wait, and so do new
    /// ones with [`wait_forever`](crate::options::LockOptions::wait_forever). With a short time, requests fail in an outage
    /// that would have ended within their wait. With a long time, each request hangs for its whole wait during an outage, and
    /// so does the handler or thread that made it. `Duration::MAX` means never. Sentinels and clusters replace a primary within
    /// a time that is set in their own configuration: set a longer one here.
    ///
    /// During an outage, one request at a time probes whether it is over.
    pub fn fail_fast_after(mut self, outage: Duration) -> Self {
        self.fail_fast_after = Some(outage);
        self
    }

    /// Sets how often a waiter polls for a lock about which the server sends no message. Defaults to 50 ms, on average.
    ///
    /// Such a lock is one that another library holds, or any lock if the server cannot send messages. For other locks the
    /// server sends a message when the waiter is granted the lock. A process whose tasks hand over such a lock leaves it alone
    /// for one pause after each batch, so all processes must have about the same value. For each key, one waiter of a process
    /// polls, however many tasks wait. A short pause costs the server commands; a long one leaves such a lock idle for longer.
    pub fn polling_pause(mut self, pause: Duration) -> Self {
        self.timing.polling_pause = pause;
        self
    }

    /// Caps how many leases this manager may hold at a time. Defaults to 100,000.
    ///
    /// Beyond it, an acquire is [`LockError::Unavailable`]. If the cap is too low, valid requests are refused. Without a cap,
    /// one caller can use up all memory.
    pub fn max_leases(mut self, most: usize) -> Self {
        self.limits.held = most;
        self
    }

    /// Caps how many tasks may wait in this manager at a time. Defaults to 100,000.
    ///
    /// Beyond it, an acquire is [`LockError::Unavailable`]. If the cap is too low, tasks are refused that would have been
    /// granted the lock. Without a cap, tasks that wait for a holder that hangs can use up all memory.
    pub fn max_waiting(mut self, most: usize) -> Self {
        self.limits.waiting = most;
        self
    }

    /// Refuses longer ttls, and longer `min_hold`s. Defaults to 60 s for several servers, and to no bound otherwise.
    ///
    /// A server that restarts may have forgotten locks. With several servers, it does not vote until it has been watched for
    /// twice this time plus 5 s. With a short maximum, it votes again sooner. A long maximum allows long ttls. All processes
    /// that use the same locks must have the same value.
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
