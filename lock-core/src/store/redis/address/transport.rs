//! How bytes travel to a server: as they are, through TLS, or over a connection of a user's client.

#[cfg(feature = "tls")]
use std::sync::OnceLock;

#[cfg(feature = "tls")]
use crate::tls::{Tls, Trust};
use crate::{error::LockError, store::redis::address::client::OwnClient};

/// The builder's settings for the transport to the servers of all urls.
#[derive(Debug, Default)]
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
    /// The user's own client opens the connections.
    Client(OwnClient),
}

impl Transport {
    pub(crate) fn client(&self) -> Option<&OwnClient> {
        if let Self::Client(client) = self {
            Some(client)
        } else {
            None
        }
    }
}

impl Security {
    /// The transport for a url that leads over a network. `scheme` has no part after a `+`.
    pub(crate) fn transport(&self, scheme: &str, shown: &str) -> Result<Transport, LockError> {
        let is_asked_for = matches!(scheme, "rediss" | "valkeys");
        if let Some(client) = &self.client {
            client.check_for(is_asked_for, shown)?;
            return Ok(Transport::Client(client.clone()));
        }
        #[cfg(not(feature = "tls"))]
        if is_asked_for {
            return Err(LockError::invalid(format!(
                "`{shown}` asks for TLS, which this build of lock-core does not speak: switch its feature `tls` on"
            )));
        }
        #[cfg(feature = "tls")]
        if is_asked_for {
            let trust = if let Some(trust) = self.trust.get() {
                trust
            } else {
                let read = self.given.clone().unwrap_or_default().read()?;
                self.trust.get_or_init(|| read)
            };
            return Ok(Transport::Tls(trust.clone()));
        } else if self.given.is_some() {
            // A configured trust must not be ignored silently: the traffic would be unencrypted.
            return Err(LockError::invalid(format!(
                "the builder was given `tls`, but `{shown}` is a url without TLS: write `rediss://`, or `valkeys://`"
            )));
        }
        Ok(Transport::Plain)
    }
}
