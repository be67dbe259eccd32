//! How bytes travel to a server: as they are, through TLS, or over a connection of a user's client.

#[cfg(feature = "tls")]
use std::sync::OnceLock;

use redis::{AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _};

#[cfg(feature = "tls")]
use crate::tls::{Tls, Trust};
use crate::{
    error::LockError,
    store::redis::address::{client::OwnClient, scheme::Kind, url::ServerUrl},
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
