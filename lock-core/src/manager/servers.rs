//! Connecting without a url: by the hosts of sentinels or of a cluster, and through a user's own client of the crate `redis`.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use redis::AsyncConnectionConfig;

use crate::{
    error::LockError,
    manager::{LockManager, LockManagerBuilder},
    store::redis::{Named, OwnClient},
};

impl LockManagerBuilder {
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
    pub async fn cluster<U>(self, hosts: U) -> Result<LockManager, LockError>
    where
        U: IntoIterator<Item: AsRef<str>>,
    {
        let url = several("cluster", hosts)?;
        self.connect(&url).await
    }

    /// Connects through a client of the crate `redis`: with its TLS and certificates, user, password and database.
    ///
    /// Each connection is opened by the client itself, on the manager's thread, with RESP3 where the server speaks it. Locks have
    /// connections of their own. A handle of a connection that is shared with other commands is not accepted, since those commands
    /// would delay renewals.
    ///
    /// Two things differ from a url. A connection is watched by PING alone, and not by the bytes that come, so a half-open
    /// connection is noticed when a reply is late. The crate `redis` reads whatever length a server announces, so the server must
    /// be trusted not to send replies without an end. If the client's url ends with `#insecure`, the server's certificate is not
    /// verified, as the client says.
    ///
    /// The builder's `tls` has no effect on a client. [`credentials`](Self::credentials) take precedence over the client's.
    ///
    /// The crate is re-exported as [`lock_core::redis`](crate::redis): a client of another major version does not fit.
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
    pub fn client(self, client: impl IntoClient) -> ConnectFuture {
        self.client_with(client, AsyncConnectionConfig::new())
    }

    /// The same with settings for each connection, such as a DNS resolver.
    ///
    /// The push sender, the response time-out and the size of the queue are this crate's own, whatever the settings say. Leave all
    /// other settings at their defaults, except for the DNS resolver. A cache answers from memory what only the server knows. A
    /// limit of concurrent requests makes renewals wait behind waiters. Credentials are given to
    /// [`credentials`](Self::credentials).
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    ///
    /// As [`LockManager::connect`].
    pub fn client_with(
        self,
        client: impl IntoClient,
        config: AsyncConnectionConfig,
    ) -> ConnectFuture {
        let client = OwnClient::new(&client.into_client(), config);
        ConnectFuture::new(async move {
            self.check()?;
            self.check_the_check_key()?;
            self.connect_to_server(Named::Client(Box::new(client)))
                .await
        })
    }

    /// Opens the connections to the servers of urls as this client does.
    ///
    /// For sentinels and clusters that a client reaches by its own TLS and certificates, TCP settings or DNS resolver. It has an
    /// effect on [`connect`](Self::connect), [`sentinel`](Self::sentinel), [`cluster`](Self::cluster) and
    /// [`redlock`](LockManager::redlock), not on [`client`](Self::client). The url says where the servers are. The servers that
    /// sentinels and cluster nodes name are reached in the same way. User, password and database come from the url, or from the
    /// builder's [`credentials`](Self::credentials), so the client must have none. The url's scheme must agree with the client's
    /// about TLS. Otherwise connecting fails. What [`client_with`](Self::client_with) says about settings applies here, too, and so
    /// does what [`client`](Self::client) says about connections. The builder's `tls` has no effect beside it.
    ///
    /// Defaults to none: connections are made by this crate. With a client, a half-open connection is noticed by PING alone.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn connect() -> Result<(), Box<dyn std::error::Error>> {
    /// use lock_core::{LockManager, redis};
    ///
    /// // Only its way to connect counts, and not its host. With TLS, it is made by `build_with_tls`.
    /// let client = redis::Client::open("redis://node-1.internal")?;
    /// let manager = LockManager::builder()
    ///     .through(client, redis::AsyncConnectionConfig::new())
    ///     .connect("redis+cluster://node-1.internal:6379,node-2.internal:6379")
    ///     .await?;
    /// # drop(manager);
    /// # Ok(())
    /// # }
    /// ```
    pub fn through(mut self, client: impl IntoClient, config: AsyncConnectionConfig) -> Self {
        self.through = Some(OwnClient::new(&client.into_client(), config));
        self
    }

    /// Connects to several independent servers, each through its client; see [`LockManager::redlock`].
    ///
    /// # Errors
    ///
    /// As [`LockManager::redlock`], and [`LockError::Invalid`] if a setting is out of bounds.
    ///
    /// # Cancel safety
    ///
    /// As [`LockManager::connect`].
    pub fn clients<C>(self, clients: C) -> ConnectFuture
    where
        C: IntoIterator<Item: IntoClient>,
    {
        let named = clients.into_iter().map(|client| {
            let config = AsyncConnectionConfig::new();
            let client = OwnClient::new(&client.into_client(), config);
            Named::Client(Box::new(client))
        });
        let named = named.collect();
        ConnectFuture::new(async move { self.connect_to_servers(named).await })
    }
}

/// The future of [`LockManagerBuilder::client`] and its like: connects, and returns the manager.
// It is a named type, since an opaque type would contain the type of the client. An error about that type would then be reported
// three times.
#[must_use = "futures do nothing unless polled"]
pub struct ConnectFuture(Pin<Box<dyn Future<Output = Result<LockManager, LockError>> + Send>>);

impl ConnectFuture {
    fn new(connect: impl Future<Output = Result<LockManager, LockError>> + Send + 'static) -> Self {
        Self(Box::pin(connect))
    }
}

impl Future for ConnectFuture {
    type Output = Result<LockManager, LockError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(context)
    }
}

impl fmt::Debug for ConnectFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectFuture").finish_non_exhaustive()
    }
}

/// A client of the crate `redis` that opens connections: [`redis::Client`](crate::redis::Client), and nothing else.
///
/// The trait is sealed. A handle that shares or replaces connections cannot be used for locks, since the manager must know which
/// request was sent on which connection.
///
/// ```compile_fail,E0277
/// # async fn connect(shared: lock_core::redis::aio::MultiplexedConnection) -> Result<(), lock_core::LockError> {
/// let manager = lock_core::LockManager::builder().client(shared).await?;
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not the client of the version of `redis` that lock-core uses: give a `lock_core::redis::Client`",
    label = "not a `lock_core::redis::Client`",
    note = "a `Client` of another version of the crate `redis` is another type: depend on the version of `lock_core::redis`, or open the \
            client by `lock_core::redis::Client::open`",
    note = "for a cluster, use a `redis+cluster://` url or `LockManagerBuilder::cluster`",
    note = "a `MultiplexedConnection` or `ConnectionManager` is made from a `redis::Client`: give that one"
)]
pub trait IntoClient: sealed::Sealed {
    /// Returns the client.
    #[doc(hidden)]
    fn into_client(self) -> redis::Client;
}

impl IntoClient for redis::Client {
    fn into_client(self) -> redis::Client {
        self
    }
}

mod sealed {
    #[expect(
        unnameable_types,
        reason = "so that no other crate implements the trait above"
    )]
    pub trait Sealed {}

    impl Sealed for redis::Client {}
}

/// The url for several hosts, which may come with a scheme.
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
