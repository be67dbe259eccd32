//! The public entry point: acquiring, running, and the calls for operators.

use std::{fmt, sync::Arc, task::Waker, time::Duration};

use crate::{
    error::LockError,
    guard::LockGuard,
    key::{IntoLockKey, LockKey},
    lock::{
        context::Context,
        key_state::{
            self,
            terms::{Defaults, Terms},
        },
        registry::Registry,
        waiting::WaitFuture,
    },
    options::{LockOptions, check_key},
    runtime::{clock::Moment, executor::Executor},
    telemetry,
};

mod acquire;
mod builder;
mod connecting;
mod default;
mod finishing;
mod listing;
#[cfg(test)]
mod modes_in_memory;
mod multi_key;
mod operating;
mod run;
#[cfg(feature = "once")]
pub(crate) mod run_once;
#[cfg(feature = "redis")]
mod servers;

pub use acquire::AcquireFuture;
pub use builder::LockManagerBuilder;
pub use default::{LockSource, current_lease, set_global, with_locks};
pub use listing::LockList;
pub(crate) use run::release_now;

/// How long the drop of the last manager waits for the releases in the background.
const LAST_WAIT: Duration = Duration::from_millis(100);

/// Acquires locks on one backend.
///
/// [`connect`](Self::connect) makes one from a url. [`run`](Self::run) runs a body while a lock is held, and drops it when the
/// lease is lost; [`acquire`](Self::acquire) returns a guard.
///
/// ```no_run
/// # use std::time::Duration;
/// # use lock_core::{LockError, LockManager, LockOptions};
/// # async fn f() -> Result<(), LockError> {
/// let locks = LockManager::connect("redis://127.0.0.1:6379").await?;
/// let options = LockOptions::new(Duration::from_secs(10)).wait(Duration::from_secs(2));
/// let token = locks.run("order:42", options.clone(), |lease| async move { lease.fencing_token() }).await?;
/// let guard = locks.acquire("order:42", options).await?;
/// guard.release().await
/// # }
/// ```
///
/// Make one manager for a process, and clone it: clones are cheap and share one state. A manager of servers owns one
/// thread with a connection to each server. The thread runs everything that must go on while a handler blocks: renewals, clean-ups,
/// reconnecting. Each tokio runtime that takes locks has one more connection to the server, 8 of these at most. Connections and thread end with the last clone, guard and clean-up. Dropping the last clone blocks while releases
/// of [`release_in_background`](LockManagerBuilder::release_in_background) have no reply, for 100 ms at most. It blocks as long
/// for the release of [shares](LockOptions::shared) that the process keeps.
///
/// # Forking
///
/// A manager works only in the process that made it, and so does one in memory: **make it after the fork**, in each child. In a
/// child, each call on an inherited manager is [`LockError::Unavailable`] at once, with this reason, and
/// [`shutdown`](Self::shutdown) returns at once. In the child, inherited leases are lost
/// ([`LeaseLost::Forked`](crate::LeaseLost::Forked)), and the bodies that run under them are dropped. Dropping an inherited value
/// releases nothing, and writes nothing to a server. The parent still holds its locks.
///
/// The child keeps the memory and the sockets of an inherited manager until the child ends or runs another program. If the parent
/// dies and the child still has the socket, the server still counts the parent as a subscriber. A lock that is then granted to the
/// parent is free after one ttl.
///
/// This holds for a child with threads of its own and a runtime of its own. A tokio runtime that was made before the fork is
/// shared with the parent, so fork from a thread that is in no runtime. A fork copies only the thread that calls it. What another
/// thread had locked at that moment stays locked in the child, in any library. Where you can, fork before any thread is started; a
/// manager starts one.
#[derive(Clone)]
pub struct LockManager {
    inner: Arc<ManagerState>,
}

struct ManagerState {
    registry: Arc<Registry>,
    /// Or what is wrong with the settings, if the constructor could not return an error.
    defaults: Result<Defaults, LockError>,
}

impl LockManager {
    /// Connects to a backend, with default settings.
    ///
    /// - `redis://[user:password@]host[:port][/database]`, `valkey://…`: a Redis or Valkey primary;
    /// - `rediss://…`, `valkeys://…`: the same through TLS, with the feature `tls`; if TLS fails, there is no connection without
    ///   it. The builder's `tls` sets which servers are trusted and the certificate of this process;
    /// - `redis+unix:///path`, `unix:///path`: the same through a unix socket;
    /// - `redis+sentinel://[user:password@]host[:port],host2[:port]/service[/database]`: the primary that these sentinels know by
    ///   the name `service`, now and after each fail-over;
    /// - `redis+cluster://[user:password@]host[:port],host2[:port]`: a cluster of which these nodes are a part;
    /// - several single servers with commas between them: see [`redlock`](Self::redlock);
    /// - `memory://`: locks inside this process, separate for each call.
    ///
    /// Parameters follow a `?`, with a `&` between two:
    ///
    /// | parameter | of | says |
    /// | --- | --- | --- |
    /// | `db` | every url of a server | the number of the database, as the path does; 0 if neither does, and in a cluster |
    /// | `protocol` | every url of a server | the version of the protocol to begin with: `2`, or `3`, which is the default |
    /// | `user`, `pass` or `password` | `redis+unix://` | the user and password, since this url has no host to write them before |
    /// | `sentinel_user`, `sentinel_password` | `redis+sentinel://` | the user and password for the sentinels themselves |
    ///
    /// Any other parameter is refused, and so are a parameter that is given twice, two different databases and a fragment (`#…`).
    /// No part of a url is ignored, since services that read one url differently do not exclude each other. Special characters in
    /// a user or password are percent-encoded: `/` is `%2F`, `@` is `%40`.
    ///
    /// # Errors
    ///
    /// - [`LockError::Invalid`] if the url is malformed (the message says where), or if one side does not accept the other's
    ///   certificate. Also if the server is not Redis, or refuses the user or password;
    /// - [`LockError::Invalid`] if the user lacks a right that locks need. The message has a line for the server's administrator,
    ///   which grants all that locks need. To find this out, connecting tries a lock: see the builder's
    ///   [`check_key`](LockManagerBuilder::check_key);
    /// - [`LockError::Unavailable`] if the server does not reply within the time-outs (2 s by default).
    ///
    /// No message contains the url's password. Only the line for the administrator contains its user.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection, if there is one already. The lock that was tried may be left, for 1 s at most.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn connect() -> Result<(), lock_core::LockError> {
    /// let manager = lock_core::LockManager::connect("redis://127.0.0.1/").await?;
    /// lock_core::set_global(manager);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn connect(url: &str) -> Result<Self, LockError> {
        Self::builder().connect(url).await
    }

    /// Connects to several independent servers, of which a majority has to agree (Redlock), with default settings.
    ///
    /// List three or five primaries that do not replicate each other, each of them once, and the same list in every process. A lock
    /// is held while a majority of the servers has it. So one of three, or two of five, may be down or hang without delaying a
    /// caller. Mutual exclusion and fencing tokens hold while a majority keeps its data and clocks run at the same rate.
    ///
    /// A server that was started lately or lost its data may have forgotten locks. It does not vote on new locks until processes
    /// have watched it for 125 s, by their own clocks. The builder's [`max_ttl`](LockManagerBuilder::max_ttl) changes this time. A
    /// first deployment is [`LockError::Unavailable`] for as long. A marker on the server says for how long the server was watched.
    /// Another process continues from the marker, and starts at once if the marked time is long enough. [`check`](Self::check)
    /// names the servers that do not vote yet.
    ///
    /// A server cannot vote if its clock is more than a second from those of the others. The user must be allowed to run scripts
    /// and `INFO`; this is checked on each server that replies. The servers send no message when a lock is released: waiters in
    /// other processes poll every [`polling_pause`](LockManagerBuilder::polling_pause), in no order. Within one process, waiters
    /// are served first come, first served, without a message, as on a single server. Locks are exclusive only:
    /// [`shared`](LockOptions::shared) and [`permits`](LockOptions::permits) are [`LockError::Invalid`].
    ///
    /// # Errors
    ///
    /// - [`LockError::Invalid`] if the number of urls is even or below three, or if two of them lead to the same server. Also if a
    ///   url is malformed, or if a server is not Redis or refuses the user or password;
    /// - [`LockError::Unavailable`] if no majority replies within the time-outs.
    ///
    /// # Cancel safety
    ///
    /// As [`connect`](Self::connect).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn connect() -> Result<(), lock_core::LockError> {
    /// let urls = ["redis://a.internal", "redis://b.internal", "redis://c.internal"];
    /// let manager = lock_core::LockManager::redlock(urls).await?;
    /// // The same, where one text is configured:
    /// let manager = lock_core::LockManager::connect("redis://a.internal,redis://b.internal,redis://c.internal").await?;
    /// # drop(manager);
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "redis")]
    pub async fn redlock<U>(urls: U) -> Result<Self, LockError>
    where
        U: IntoIterator<Item: AsRef<str>>,
    {
        Self::builder().redlock(urls).await
    }

    /// Makes a manager for locks inside this process: for development and tests.
    ///
    /// It works on the caller's tokio runtime, which must have its timer enabled, and follows its virtual time. Renewals run on one
    /// of the runtimes that use the manager: while that runtime is blocked or not driven, leases may run out. The managers of two
    /// calls do not exclude each other's locks; clone one manager instead.
    #[must_use]
    pub fn in_memory() -> Self {
        Self::builder().in_memory()
    }

    /// Makes a manager as [`in_memory`](Self::in_memory) does, and a handle that injects faults: for your tests.
    ///
    /// See [`Faults`](crate::testing::Faults) for what it can do, with an example of each.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn in_memory_with_faults() -> (Self, crate::testing::Faults) {
        Self::builder().in_memory_with_faults()
    }

    /// Starts building a manager with other settings.
    pub fn builder() -> LockManagerBuilder {
        LockManagerBuilder::default()
    }

    /// Acquires a lock, waiting for it as long as the options say.
    ///
    /// The returned guard keeps the lock, and its lease is renewed, until the guard is released or dropped. The guard does not stop
    /// your code when the lease is lost; [`run`](Self::run) does.
    ///
    /// Inside a body that holds the key already, the call succeeds at once with the same lease. A body that holds the key shared
    /// cannot acquire it exclusively: two such bodies would wait for each other.
    ///
    /// # Errors
    ///
    /// - [`LockError::Busy`] if another holder had it during the whole wait;
    /// - [`LockError::Unavailable`] if the backend did not reply, or the manager was shut down or is at a cap;
    /// - [`LockError::Invalid`] if the key or an option is out of bounds, or if the key holds something that is no lock. Also if
    ///   the ttl is too short for this server: its replies take longer than half of it;
    /// - [`LockError::Invalid`] if the running body, another holder or a waiter has the key in a mode that does not allow this one.
    ///   These are an exclusive request inside a shared body, and a request with permits beside one without;
    /// - [`LockError::Lost`] if the running body holds the key by a lease that is lost.
    ///
    /// While a reply is in flight, the call may take longer than its wait, by three command time-outs at most (of 1 s by default).
    /// If the server's user may not run scripts, it may take even longer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the position in the wait queue. If the lock had just been granted, it is released in the
    /// background within one round trip. If the connection is gone too, the lock ends with its ttl.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lock_core::LockError> {
    /// use std::time::Duration;
    /// use lock_core::{LockManager, LockOptions};
    ///
    /// let manager = LockManager::in_memory();
    /// let guard = manager.acquire("order:42", LockOptions::new(Duration::from_secs(10))).await?;
    /// // … only one holder of `order:42` is here at a time …
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn acquire(&self, key: impl IntoLockKey, options: LockOptions) -> AcquireFuture<'_> {
        let key = key.into_lock_key();
        let terms = self.terms(&key, &options);
        AcquireFuture::new(self, key, terms)
    }

    /// Acquires a lock if it is free: asks once, and does not wait, whatever the options say.
    ///
    /// Returns `None` if another holder has it, or if another task of this process waits for it.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), but never [`LockError::Busy`].
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(
        &self,
        key: impl IntoLockKey,
        options: LockOptions,
    ) -> Result<Option<LockGuard>, LockError> {
        match self.acquire(key, options.no_wait()).await {
            Ok(guard) => Ok(Some(guard)),
            Err(error) if error.is_busy() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Joins the wait queue of a key.
    fn join_queue(
        &self,
        key: &LockKey,
        terms: Terms,
        now: Moment,
        deadline: Option<Moment>,
        waker: &Waker,
    ) -> Result<WaitFuture, LockError> {
        let wait = WaitFuture::join(&self.inner.registry, key, terms, now, deadline, waker);
        wait.map(WaitFuture::watched)
            .inspect_err(|error| telemetry::refused(key, terms.mode.kind().shown(), error))
    }

    fn terms(&self, key: &LockKey, options: &LockOptions) -> Result<Terms, LockError> {
        let defaults = self.inner.defaults.clone()?;
        Terms::new(options, defaults).map_err(|error| self.or_closed(error.about(key)))
    }

    /// The error of a call that is refused. A manager that was shut down says that first, since nothing else is worth mending then.
    fn or_closed(&self, error: LockError) -> LockError {
        let is_refusal = matches!(
            error,
            LockError::Invalid { .. } | LockError::Unavailable { .. }
        );
        // In a forked child another thread may have locked the mutex.
        if !is_refusal || !self.context().is_here() || !self.inner.registry.keys.are_closed() {
            return error;
        }
        let closed = key_state::shut_down();
        match error.key() {
            Some(key) => closed.about(key),
            None => closed,
        }
    }

    /// Checks a key that is about to be locked.
    fn check_key(&self, key: &LockKey) -> Result<(), LockError> {
        telemetry::check_literal(key);
        check_key(&self.inner.registry.prefix, key)
    }

    /// Refuses a call outside a tokio runtime, if the backend has no thread of its own.
    fn require_runtime(&self) -> Result<(), LockError> {
        if matches!(self.context().executor, Executor::Caller)
            && tokio::runtime::Handle::try_current().is_err()
        {
            return Err(LockError::invalid(
                "the in-memory backend works on the caller's tokio runtime, and there is none here: call it inside one",
            ));
        }
        Ok(())
    }

    fn context(&self) -> &Arc<Context> {
        &self.inner.registry.context
    }
}

impl Drop for ManagerState {
    /// Blocks while background releases, or releases of kept shares, are in flight: the process may end next.
    fn drop(&mut self) {
        let context = &self.registry.context;
        if !context.executor.has_own_thread() || !context.is_here() {
            return;
        }
        let had_shares = self.registry.close_all_shares();
        if !context.executor.runs_beside() {
            return;
        }
        if had_shares {
            context.in_progress.block_until_emptied(LAST_WAIT);
        }
        if context.in_background.count() > 0 {
            context.in_background.block_until_emptied(LAST_WAIT);
        }
    }
}

impl fmt::Debug for LockManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockManager")
            .field("backend", &self.context().store)
            .field("prefix", &self.inner.registry.prefix)
            .finish_non_exhaustive()
    }
}
