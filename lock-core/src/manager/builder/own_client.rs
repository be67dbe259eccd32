//! Connections through the user's own client of the `redis` crate.

use redis::AsyncConnectionConfig;

use crate::{
    backend::redis::transport::address::{Named, security::OwnClient},
    error::LockError,
    manager::{LockManager, builder::LockManagerBuilder},
};

impl LockManagerBuilder {
    /// Connects through a client of the `redis` crate, with its TLS and certificates, user, password and database.
    ///
    /// The client itself opens each connection, on the manager's thread, with RESP3 if the server supports it. Locks have
    /// connections of their own: a handle to a connection that is shared with other commands is not accepted, since those
    /// commands would delay renewals.
    ///
    /// Two things differ from a url. A connection on which a reply is late is replaced, because it cannot be verified that
    /// its later replies belong to their requests. And the `redis` crate reads replies of any length that a server
    /// announces, so the server must be trusted not to send endless ones. If the client's url ends with `#insecure`, the
    /// server's certificate is not verified, as that url demands.
    ///
    /// The builder's `tls` has no effect on a client. [`credentials`](Self::credentials) take precedence over the client's.
    ///
    /// The client must be of the re-exported crate [`lock_core::redis`](crate::redis), since the client of another major
    /// version is another type. For settings of each connection, such as a DNS resolver, and for sentinels, clusters and
    /// Redlock, pass a url, and the client to [`through`](Self::through).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`connect`](Self::connect).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has the same effect as with [`LockManager::connect`].
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

    /// Opens the connections to the servers of a url in the same way as this client does.
    ///
    /// Use it if the servers can only be reached with the client's TLS and certificates, TCP settings or DNS resolver. It
    /// affects [`connect`](Self::connect) and [`redlock`](Self::redlock), but not [`client`](Self::client). The url says
    /// where the servers are. Servers that sentinels or cluster nodes name are reached in the same way. User, password and
    /// database come from the url, or from the builder's [`credentials`](Self::credentials), so the client must have none.
    /// The url's scheme must agree with the client about TLS, or connecting fails. The remarks of [`client`](Self::client)
    /// about connections also apply here. The builder's `tls` has no effect in combination with a client.
    ///
    /// This crate sets the push sender, the response time-out and the size of the queue, whatever `config` contains. Leave
    /// all other settings except for the DNS resolver at their defaults: a cache would answer questions that only the
    /// server can answer, and a limit of concurrent requests would make renewals wait for the requests of waiters.
    ///
    /// With a client, a connection on which a reply is late is replaced, while this crate's own connections can verify such
    /// replies. Defaults to no client.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn connect() -> Result<(), Box<dyn std::error::Error>> {
    /// use lock_core::{LockManager, redis};
    ///
    /// // The host of the client is not used. A client with TLS is created by `build_with_tls`.
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
        reason = "takes the client by value, as `client` does"
    )]
    pub fn through(mut self, client: redis::Client, config: AsyncConnectionConfig) -> Self {
        self.servers.security.client = Some(OwnClient::new(&client, config));
        self
    }
}
