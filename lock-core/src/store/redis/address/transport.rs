//! Whether bytes travel to a server as they are, or through TLS.

#[cfg(feature = "tls")]
use std::sync::OnceLock;

use crate::error::LockError;
#[cfg(feature = "tls")]
use crate::tls::{Tls, Trust};

/// The builder's TLS settings, for all servers of a manager.
#[derive(Debug, Default)]
pub(crate) struct Security {
    #[cfg(feature = "tls")]
    given: Option<Tls>,
    /// Read with the first url that asks for TLS, since the system's authorities are a large file.
    #[cfg(feature = "tls")]
    trust: OnceLock<Trust>,
}

/// How the bytes to one server travel.
#[derive(Clone, Debug)]
pub(crate) enum Transport {
    Plain,
    #[cfg(feature = "tls")]
    Tls(Trust),
}

/// Whether urls of this scheme ask for TLS: `rediss://`, `valkeys://`, and what may stand behind a `+`.
pub(crate) fn is_asked_for(scheme: &str) -> bool {
    matches!(scheme.split('+').next(), Some("rediss" | "valkeys"))
}

#[cfg(feature = "tls")]
impl Security {
    pub(crate) fn new(given: Option<Tls>) -> Self {
        Self {
            given,
            trust: OnceLock::new(),
        }
    }

    /// For a url with this scheme, which leads over a network.
    pub(crate) fn transport(&self, scheme: &str, shown: &str) -> Result<Transport, LockError> {
        if is_asked_for(scheme) {
            let trust = if let Some(trust) = self.trust.get() {
                trust
            } else {
                let read = self.given.clone().unwrap_or_default().read()?;
                self.trust.get_or_init(|| read)
            };
            return Ok(Transport::Tls(trust.clone()));
        }
        // A configured trust must not be ignored silently: the traffic would be unencrypted.
        if self.given.is_some() {
            return Err(LockError::invalid(format!(
                "the builder was given `tls`, but `{shown}` is a url without TLS: write `rediss://`, or `valkeys://`"
            )));
        }
        Ok(Transport::Plain)
    }
}

#[cfg(not(feature = "tls"))]
impl Security {
    #[expect(
        clippy::unused_self,
        reason = "the other build of this function needs it"
    )]
    pub(crate) fn transport(&self, scheme: &str, shown: &str) -> Result<Transport, LockError> {
        if is_asked_for(scheme) {
            return Err(LockError::invalid(format!(
                "`{shown}` asks for TLS, which this build of lock-core does not speak: switch its feature `tls` on"
            )));
        }
        Ok(Transport::Plain)
    }
}
