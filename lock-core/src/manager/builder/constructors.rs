//! The constructors of a manager: from a url, from several urls, or for locks in memory.

use crate::{
    error::LockError,
    manager::{LockManager, builder::LockManagerBuilder},
};

impl LockManager {
    /// Connects to a backend, with default settings.
    ///
    /// - `redis://[user:password@]host[:port][/database]`, `valkey://…`: a Redis or Valkey primary;
    /// - `rediss://…`, `valkeys://…`: such a primary through TLS, with the `tls` feature. If TLS fails, there is no
    ///   fallback to a connection without it. The builder's `tls` sets which servers are trusted and the certificate of
    ///   this process;
    /// - `redis+unix:///path`, `unix:///path`: a server behind a unix socket;
    /// - `redis+sentinel://[user:password@]host[:port],host2[:port]/service[/database]`: the primary that these sentinels
    ///   know by the name `service`, now and after each fail-over;
    /// - `redis+cluster://[user:password@]host[:port],host2[:port]`: the cluster to which these nodes belong;
    /// - several single servers, separated by commas: see [`redlock`](Self::redlock);
    /// - `memory://`: locks inside this process, separate for each call.
    ///
    /// Parameters follow a `?` and are separated by `&`:
    ///
    /// | parameter | urls | meaning |
    /// | --- | --- | --- |
    /// | `db` | every url of a server | the number of the database, like the path; 0 by default, and always in a cluster |
    /// | `protocol` | every url of a server | the version of the RESP protocol to start with: `2`, or `3`, which is the default |
    /// | `user`, `pass` or `password` | `redis+unix://` | the user and password, since this url has no host that they could precede |
    /// | `sentinel_user`, `sentinel_password` | `redis+sentinel://` | the user and password for the sentinels themselves |
    ///
    /// Any other parameter is refused, and so are a parameter that is given twice, two different databases and a fragment
    /// (`#…`). No part of a url is ignored, since services that read a url differently would not exclude each other.
    /// Special characters in a user or password must be percent-encoded: `/` is `%2F`, `@` is `%40`.
    ///
    /// # Errors
    ///
    /// - [`LockError::Invalid`] if the url is malformed, if one side does not accept the other's certificate, or if the
    ///   server is not Redis, or refuses the user or password;
    /// - [`LockError::Invalid`] if the user lacks a right that locks need, which connecting finds out by trying a lock: see
    ///   the builder's [`check_key`](LockManagerBuilder::check_key). The message contains a line for the server's
    ///   administrator that grants all necessary rights;
    /// - [`LockError::Unavailable`] if the server does not reply within the time-outs (2 s by default).
    ///
    /// No message contains the url's password. Only the line for the administrator contains its user.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection, if one was made. The lock that was tried may remain for at most 1 s.
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
    /// List three or five primaries that do not replicate each other, each of them once, and the same list in every
    /// process. A lock is held while a majority of the servers has it, so one of three, or two of five, may be down or hang
    /// without delaying a caller. Mutual exclusion and fencing tokens hold while a majority keeps its data and clocks run
    /// at the same rate.
    ///
    /// A server that was started recently or lost its data may have forgotten locks. It does not vote on new locks until
    /// processes have watched it for 125 s, by their own clocks. The builder's [`max_ttl`](LockManagerBuilder::max_ttl)
    /// changes this time. In a first deployment, locks are therefore [`LockError::Unavailable`] for that long. A marker on
    /// the server records how long it has been watched, so another process continues from there, and starts at once if that
    /// is long enough. [`check`](Self::check) names the servers that do not vote yet.
    ///
    /// A server cannot vote if its clock differs by more than a second from those of the others. The user must be allowed
    /// to run scripts and `INFO`, which is checked on each server that replies. The servers send no message when a lock is
    /// released, so waiters in other processes poll every [`polling_pause`](LockManagerBuilder::polling_pause), in no
    /// particular order. Within one process, waiters get the lock in order of arrival and without a message, as on a single
    /// server. All locks are exclusive: [`shared`](crate::options::LockOptions::shared) and
    /// [`permits`](crate::options::LockOptions::permits) are [`LockError::Invalid`].
    ///
    /// # Errors
    ///
    /// - [`LockError::Invalid`] if the number of urls is even or below three, if two of them lead to the same server, if a
    ///   url is malformed, or if a server is not Redis or refuses the user or password;
    /// - [`LockError::Unavailable`] if no majority replies within the time-outs.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has the same effect as with [`connect`](Self::connect).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn connect() -> Result<(), lock_core::LockError> {
    /// let urls = ["redis://a.internal", "redis://b.internal", "redis://c.internal"];
    /// let manager = lock_core::LockManager::redlock(urls).await?;
    /// // Or as a single string, for a configuration file:
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

    /// Creates a manager for locks inside this process, for development and tests.
    ///
    /// It runs on the caller's tokio runtime, which must have its timer enabled, and follows its virtual time. Renewals run
    /// on one of the runtimes that use the manager. While that runtime is blocked or not driven, leases may run out. The
    /// managers of two calls do not exclude each other's holders; clone one manager instead.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lock_core::LockError> {
    /// use lock_core::{LockManager, LockOptions};
    ///
    /// let locks = LockManager::in_memory();
    /// let guard = locks.acquire("order:42", LockOptions::default()).await?;
    /// assert!(locks.try_acquire("order:42", LockOptions::default()).await?.is_none());
    /// guard.release().await
    /// # }
    /// ```
    #[must_use]
    pub fn in_memory() -> Self {
        Self::builder().in_memory()
    }

    /// Creates a manager like that of [`in_memory`](Self::in_memory), and a handle that injects faults, for your tests.
    ///
    /// The documentation of [`Faults`](crate::testing::Faults) has examples.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn in_memory_with_faults() -> (Self, crate::testing::Faults) {
        Self::builder().in_memory_with_faults()
    }

    /// Returns a builder, to create a manager with settings other than the defaults.
    pub fn builder() -> LockManagerBuilder {
        LockManagerBuilder::default()
    }
}
