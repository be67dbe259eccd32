//! A client of the crate `redis` that the user hands over: it opens the connections, with its own TLS, certificates and DNS.
//!
//! Where a url, a sentinel or a cluster node names the server, its host and port replace those of the client. The rest stays, so
//! this crate need not read the TLS parameters, to which it has no access. User, password and database are those of the url, since
//! sentinels have others. So a client that has them too is refused.

use std::fmt;

use redis::{AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, RedisConnectionInfo};

use crate::{credentials::Credentials, error::LockError};

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
