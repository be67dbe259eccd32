//! A client of the crate `redis` that the user hands over: it opens the connections, with its own TLS, certificates and DNS.

use std::{fmt, sync::Arc};

use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ProtocolVersion,
    RedisConnectionInfo, RedisResult, aio::MultiplexedConnection,
};

use crate::{
    credentials::Credentials, error::LockError, store::redis::address::endpoint::Endpoint,
};

/// The client, and the settings of each connection that it opens.
#[derive(Clone)]
pub(crate) struct OwnClient(Arc<(Client, AsyncConnectionConfig)>);

impl fmt::Debug for OwnClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnClient").finish_non_exhaustive()
    }
}

impl OwnClient {
    pub(crate) fn new(client: Client, config: AsyncConnectionConfig) -> Self {
        Self(Arc::new((client, config)))
    }

    /// Checks that the client can open the connections of a url. The servers, user, password and database are those of the url.
    pub(super) fn check_for(&self, over_tls: bool, shown: &str) -> Result<(), LockError> {
        let info = self.info();
        let why = match info.addr() {
            ConnectionAddr::TcpTls { .. } if !over_tls => {
                "opens connections through TLS: write `rediss`, or `valkeys`, in the url"
            }
            ConnectionAddr::Tcp(..) if over_tls => {
                "opens connections without TLS: make it of a `rediss://` url"
            }
            ConnectionAddr::Tcp(..) | ConnectionAddr::TcpTls { .. } => {
                let settings = info.redis_settings();
                if settings.password().is_none() && settings.db() == 0 {
                    return Ok(());
                }
                "has a password or a database: these belong to the url, or to the builder's `credentials`"
            }
            _ => "opens no connections to hosts",
        };
        Err(LockError::invalid(format!(
            "the client that the builder was given for `{shown}` {why}"
        )))
    }

    /// Where the client connects, and with which settings.
    pub(super) fn info(&self) -> &ConnectionInfo {
        self.0.0.get_connection_info()
    }

    /// The settings to which those of this crate are added.
    pub(crate) fn config(&self) -> AsyncConnectionConfig {
        self.0.1.clone()
    }

    /// Opens a connection. Its driver runs on the caller's runtime, and ends when the last handle is dropped.
    pub(crate) async fn open(
        &self,
        endpoint: &Endpoint,
        database: u32,
        credentials: Option<&Credentials>,
        protocol: ProtocolVersion,
        config: &AsyncConnectionConfig,
    ) -> RedisResult<MultiplexedConnection> {
        let info = self.info();
        let settings = info.redis_settings().clone();
        let settings = settings.set_protocol(protocol).set_db(database.into());
        let mut place = info.addr().clone();
        if let (
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. },
            Endpoint::Tcp { host: at, port: on },
        ) = (&mut place, endpoint)
        {
            host.clone_from(at);
            *port = *on;
        }
        let info = info.clone().set_addr(place);
        let info = info.set_redis_settings(authenticated(settings, credentials));
        let client = Client::open(info)?;
        client
            .get_multiplexed_async_connection_with_config(config)
            .await
    }
}

/// Settings with these credentials.
pub(crate) fn authenticated(
    settings: RedisConnectionInfo,
    credentials: Option<&Credentials>,
) -> RedisConnectionInfo {
    let Some(Credentials { user, password, .. }) = credentials else {
        return settings;
    };
    // Without a name, the default user logs in, and not the one that a client may have.
    let user = user.as_deref().unwrap_or("default");
    settings.set_password(password).set_username(user)
}
