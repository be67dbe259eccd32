//! A client of the crate `redis` that the user hands over: it opens the connections, with its own TLS, certificates and DNS.

use std::sync::Arc;

use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ProtocolVersion, RedisResult,
    aio::MultiplexedConnection,
};

use crate::{
    credentials::Credentials,
    error::LockError,
    store::redis::address::{Endpoint, url::in_brackets},
};

/// The client, and the settings of each connection that it opens.
#[derive(Clone)]
pub(crate) struct OwnClient {
    client: Arc<Client>,
    config: Arc<AsyncConnectionConfig>,
}

impl OwnClient {
    pub(crate) fn new(client: Client, config: AsyncConnectionConfig) -> Self {
        Self {
            client: Arc::new(client),
            config: Arc::new(config),
        }
    }

    /// Where it leads, and what is shown of that.
    pub(super) fn place(&self) -> Result<(Endpoint, String), LockError> {
        let tcp = |scheme: &str, host: &String, port: u16| {
            let shown = format!("{scheme}://{}:{port}", in_brackets(host));
            let host = host.clone();
            (Endpoint::Tcp { host, port }, shown)
        };
        match self.client.get_connection_info().addr() {
            ConnectionAddr::Tcp(host, port) => Ok(tcp("redis", host, *port)),
            ConnectionAddr::TcpTls { host, port, .. } => Ok(tcp("rediss", host, *port)),
            ConnectionAddr::Unix(path) => {
                let shown = format!("redis+unix://{}", path.display());
                Ok((Endpoint::Unix(path.clone()), shown))
            }
            _ => Err(LockError::invalid(
                "this version of lock-core does not know the address of this `redis::Client`: use a url",
            )),
        }
    }

    pub(super) fn credentials(&self) -> Option<Credentials> {
        let settings = self.client.get_connection_info().redis_settings();
        let password = settings.password()?;
        Some(Credentials::new(
            settings.username().unwrap_or_default(),
            password,
        ))
    }

    pub(super) fn database(&self) -> Result<u32, LockError> {
        let number = self.client.get_connection_info().redis_settings().db();
        u32::try_from(number).map_err(|_| {
            LockError::invalid(format!(
                "the client's database {number} is not a number that a server has"
            ))
        })
    }

    /// The settings to which those of this crate are added.
    pub(crate) fn config(&self) -> AsyncConnectionConfig {
        AsyncConnectionConfig::clone(&self.config)
    }

    /// Opens a connection. Its driver runs on the caller's runtime, and ends when the last handle is dropped.
    pub(crate) async fn open(
        &self,
        credentials: Option<&Credentials>,
        database: u32,
        protocol: ProtocolVersion,
        config: &AsyncConnectionConfig,
    ) -> RedisResult<MultiplexedConnection> {
        let info = self.client.get_connection_info();
        let mut settings = info.redis_settings().clone();
        settings = settings.set_protocol(protocol).set_db(database.into());
        if let Some(Credentials { user, password, .. }) = credentials {
            // The client's own user is not meant.
            let user = user.as_deref().unwrap_or("default");
            settings = settings.set_password(password).set_username(user);
        }
        let client = Client::open(info.clone().set_redis_settings(settings))?;
        client
            .get_multiplexed_async_connection_with_config(config)
            .await
    }
}
