//! The transport to a server: plain, TLS, or a connection of a user's client.
//!
//! A client of the `redis` crate that the user hands over opens the connections, with its own TLS, certificates and
//! DNS. If a url, a sentinel or a cluster node names the server, its host and port replace those of the client. The
//! rest is unchanged, so this crate need not read the TLS parameters, to which it has no access. User, password and
//! database come from the url, since those of sentinels differ. A client that sets them as well is refused.

use std::fmt;

use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _,
};

#[cfg(feature = "tls")]
use crate::tls::{Tls, Trust};
use crate::{
    backend::redis::transport::address::url::{Kind, ServerUrl},
    error::LockError,
};

/// The builder's settings for the transport to the servers of all urls.
#[derive(Clone, Debug, Default)]
pub(crate) struct Security {
    #[cfg(feature = "tls")]
    pub(crate) given: Option<Tls>,
    /// The client that opens all connections.
    pub(crate) client: Option<OwnClient>,
}

/// The transport to one server.
#[derive(Clone)]
pub(crate) enum Transport {
    Plain,
    #[cfg(feature = "tls")]
    Tls(Trust),
    /// The `redis` crate opens the connections, as the user's own client does.
    Client(AsyncConnectionConfig),
}

impl Security {
    /// Returns the transport for a url, and the settings that do not depend on its host.
    pub(super) fn transport(
        &self,
        url: &ServerUrl,
    ) -> Result<(ConnectionInfo, Transport), LockError> {
        let info = url.servers[0].clone().into_connection_info();
        let info = info.expect("an address is all that it needs");
        let refused = |why: &str| Err(LockError::invalid(format!("`{}` {why}", url.shown)));
        match &self.client {
            // A unix socket needs no TLS, because the bytes never leave the machine.
            _ if url.kind == Kind::Socket => return Ok((info, Transport::Plain)),
            Some(client) if client.fits(url.is_over_tls) => {
                let transport = Transport::Client(client.config.clone());
                return Ok((client.info.clone(), transport));
            }
            Some(_) => {
                return refused(
                    "does not fit the client that the builder was given: it must connect to a host, use TLS exactly if the url \
                    is `rediss` or `valkeys`, and have neither password nor database, which belong to the url or to the \
                     builder's `credentials`",
                );
            }
            None => {}
        }
        #[cfg(not(feature = "tls"))]
        if url.is_over_tls {
            return refused(
                "asks for TLS, which this build of lock-core does not support: enable its feature `tls`",
            );
        }
        #[cfg(feature = "tls")]
        if url.is_over_tls {
            let trust = self.given.clone().unwrap_or_default().read()?;
            return Ok((info, Transport::Tls(trust)));
        } else if self.given.is_some() {
            // A configured trust must not be ignored silently: the traffic would be unencrypted.
            return refused(
                "is a url without TLS, but the builder was given `tls`: write `rediss://` or `valkeys://`",
            );
        }
        Ok((info, Transport::Plain))
    }
}

/// The address to which the client connects, and the settings of each connection that it opens.
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

    /// Returns `true` if the client can open the connections of a url. The servers, user, password and database are those of the url.
    fn fits(&self, over_tls: bool) -> bool {
        let settings = self.info.redis_settings();
        let is_as_wanted = match self.info.addr() {
            ConnectionAddr::Tcp(..) => !over_tls,
            ConnectionAddr::TcpTls { .. } => over_tls,
            _ => false,
        };
        is_as_wanted && settings.password().is_none() && settings.db() == 0
    }
}
