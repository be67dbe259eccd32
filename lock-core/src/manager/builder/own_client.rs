//! Connecting through the user's own client of the crate `redis`.

use redis::AsyncConnectionConfig;

use crate::{
    backend::redis::transport::address::{Named, security::OwnClient},
    error::LockError,
    manager::{LockManager, builder::LockManagerBuilder},
};

impl LockManagerBuilder {
    /// Connects through a client of the crate `redis`: with its TLS and certificates, user, password and database.
    ///
    /// Each connection is opened by the client itself, on the manager's thread, with RESP3 where the server speaks it. Locks
    /// have connections of their own. A handle to a connection that is shared with other commands is not accepted, since those
    /// commands would delay renewals.
    ///
    /// Two things differ from a url. A connection on which a reply is late is replaced, since its later replies cannot be
    /// verified to belong to their requests. And the crate `redis` reads whatever length a server announces, so the server must
    /// be trusted not to send endless replies. If the client's url ends with `#insecure`, the server's certificate is not
    /// verified, as that url demands.
    ///
    /// The builder's `tls` has no effect on a client. [`credentials`](Self::credentials) take precedence over the client's.
    ///
    /// The crate is re-exported as [`lock_core::redis`](crate::redis): a client of another major version has another type. For
    /// settings of each connection, such as a DNS resolver, and for sentinels, clusters and Redlock, pass a url, and the client
    /// to [`through`](Self::through).
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    ///
    /// As [`LockManager::connect`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn connect() -> Result<(), Box<dyn std::error::Error>> {
    /// use lock_core::{LockManager, redis};
    ///
    /// let client = redis::Client::open("redis://127.0.0.1:6379/2")?;
    /// let manager = LockManager::builder().client(client).await?;
    /// # drop(manager);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn client(self, client: redis::Client) -> Result<LockManager, LockError> {
        let client = OwnClient::new(&client, AsyncConnectionConfig::new());
        self.check_to_connect()?;
        self.connect_to_server(Named::Client(Box::new(client)))
            .await
    }

    /// Opens the connections to the servers of urls in the same way as this client does.
    ///
    /// For servers that a client reaches by its own TLS and certificates, TCP settings or DNS resolver. It affects
    /// [`connect`](Self::connect) and [`redlock`](Self::redlock), not [`client`](Self::client). The url determines where the
    /// servers are. The servers that sentinels and cluster nodes name are reached in the same way. User, password and database
    /// come from the url, or from the builder's [`credentials`](Self::credentials), so the client must have none. The url's
    /// scheme must agree with the client about TLS, or connecting fails. The remarks of [`client`](Self::client) about
    /// connections also apply here. The builder's `tls` has no effect in combination with it.
    ///
    /// The push sender, the response time-out and the size of the queue are this crate's own, whatever `config` contains. Leave
    /// all other settings at their defaults, except for the DNS resolver: a cache would answer from memory what only the server
    /// knows, and a limit of concurrent requests would make renewals wait behind waiters.
    ///
    /// Defaults to none: connections are made by this crate. With a client, a connection on which a reply is late is replaced.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn connect() -> Result<(), Box<dyn std::error::Error>> {
    /// use lock_core::{LockManager, redis};
    ///
    /// // Only the way it connects is used, not its host. With TLS, it is made by `build_with_tls`.
    /// let client = redis::Client::open("redis://node-1.internal")?;
    /// let manager = LockManager::builder()
    ///     .through(client, redis::AsyncConnectionConfig::new())
    ///     .connect("redis+cluster://node-1.internal:6379,node-2.internal:6379")
    ///     .await?;
    /// # drop(manager);
    /// # Ok(())
    /// # }
    /// ```
    #[expect(
        clippy::needless_pass_by_value,
        reason = "the builder has the client from then on, as with `client`"
    )]
    pub fn through(mut self, client: redis::Client, config: AsyncConnectionConfig) -> Self {
        self.servers.security.client = Some(OwnClient::new(&client, config));
        self
    }
}
