//! How bytes travel to a server: as they are, through TLS, or over a connection of a user's client.
//!
//! A client of the crate `redis` that the user hands over opens the connections, with its own TLS, certificates and DNS. Where a url, a
//! sentinel or a cluster node names the server, its host and port replace those of the client. The rest stays, so this crate need not
//! read the TLS parameters, to which it has no access. User, password and database are those of the url, since sentinels have others.
//! So a client that has them too is refused.

use std::fmt;
#[cfg(feature = "tls")]
use std::sync::OnceLock;

use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _,
    RedisConnectionInfo,
};

#[cfg(feature = "tls")]
use crate::tls::{Tls, Trust};
use crate::{
    backend::redis::transport::address::{scheme::Kind, url::ServerUrl},
    credentials::Credentials,
    error::LockError,
};

/// The builder's settings for the transport to the servers of all urls.
#[derive(Clone, Debug, Default)]
pub(crate) struct Security {
    #[cfg(feature = "tls")]
    pub(crate) given: Option<Tls>,
    /// The client that opens all connections.
    pub(crate) client: Option<OwnClient>,
    /// Read with the first url that asks for TLS, since the system's authorities are a large file.
    #[cfg(feature = "tls")]
    pub(crate) trust: OnceLock<Trust>,
}

/// How the bytes to one server travel.
#[derive(Clone)]
pub(crate) enum Transport {
    Plain,
    #[cfg(feature = "tls")]
    Tls(Trust),
    /// The crate `redis` opens the connections, as the user's own client does.
    Client(AsyncConnectionConfig),
}

impl Security {
    /// The transport for a url, and the settings that do not depend on its host.
    pub(super) fn transport(
        &self,
        url: &ServerUrl,
    ) -> Result<(ConnectionInfo, Transport), LockError> {
        let ours = |addr: ConnectionAddr| addr.into_connection_info().expect("it is whole");
        if url.kind == Kind::Socket {
            // The bytes never leave the machine.
            let path = ConnectionAddr::Unix((&url.name).into());
            return Ok((ours(path), Transport::Plain));
        }
        if let Some(client) = &self.client {
            client.check_for(url.is_over_tls, &url.shown)?;
            let transport = Transport::Client(client.config.clone());
            return Ok((client.info.clone(), transport));
        }
        let anywhere = ours(ConnectionAddr::Tcp(String::new(), 0));
        #[cfg(not(feature = "tls"))]
        if url.is_over_tls {
            return Err(LockError::invalid(format!(
                "`{}` asks for TLS, which this build of lock-core does not speak: switch its feature `tls` on",
                url.shown
            )));
        }
        #[cfg(feature = "tls")]
        if url.is_over_tls {
            let trust = if let Some(trust) = self.trust.get() {
                trust
            } else {
                let read = self.given.clone().unwrap_or_default().read()?;
                self.trust.get_or_init(|| read)
            };
            return Ok((anywhere, Transport::Tls(trust.clone())));
        } else if self.given.is_some() {
            // A configured trust must not be ignored silently: the traffic would be unencrypted.
            return Err(LockError::invalid(format!(
                "the builder was given `tls`, but `{}` is a url without TLS: write `rediss://`, or `valkeys://`",
                url.shown
            )));
        }
        Ok((anywhere, Transport::Plain))
    }
}

/// Where the client connects, and the settings of each connection that it opens.
#[derive(Clone)]
pub(crate) struct OwnClient {
    pub(super) info: ConnectionInfo,
    pub(super) config: AsyncConnectionConfig,
}

impl fmt::Debug for OwnClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnClient").finish_non_exhaustive()
    }
}

impl OwnClient {
    pub(crate) fn new(client: &Client, config: AsyncConnectionConfig) -> Self {
        let info = client.get_connection_info().clone();
        Self { info, config }
    }

    /// Checks that the client can open the connections of a url. The servers, user, password and database are those of the url.
    pub(super) fn check_for(&self, over_tls: bool, shown: &str) -> Result<(), LockError> {
        let settings = self.info.redis_settings();
        let why = match self.info.addr() {
            ConnectionAddr::TcpTls { .. } if !over_tls => {
                "opens connections through TLS: write `rediss`, or `valkeys`, in the url"
            }
            ConnectionAddr::Tcp(..) if over_tls => {
                "opens connections without TLS: make it of a `rediss://` url"
            }
            ConnectionAddr::Tcp(..) | ConnectionAddr::TcpTls { .. }
                if settings.password().is_none() && settings.db() == 0 =>
            {
                return Ok(());
            }
            ConnectionAddr::Tcp(..) | ConnectionAddr::TcpTls { .. } => {
                "has a password or a database: these belong to the url, or to the builder's `credentials`"
            }
            _ => "opens no connections to hosts",
        };
        Err(LockError::invalid(format!(
            "the client that the builder was given for `{shown}` {why}"
        )))
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
