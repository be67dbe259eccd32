//! The settings of a builder that are for servers only.

use std::{sync::Arc, time::Duration};

#[cfg(doc)]
use crate::manager::LockManager;
#[cfg(feature = "tls")]
use crate::tls::Tls;
use crate::{
    backend::redis::{
        protocol::redis_store::{Scope, Settings},
        topology::Replicas,
    },
    credentials::CredentialsProvider,
    error::LockError,
    manager::builder::LockManagerBuilder,
    runtime::executor::Executor,
};

impl LockManagerBuilder {
    /// Has connecting succeed although the server cannot be reached yet. Defaults to an error.
    ///
    /// For a service that starts together with its server. The first connection is tried again, about once a second, and each
    /// acquire tries it, too. What connecting would have reported, such as a missing right or an eviction policy, is then logged. A
    /// url that is wrong, and a user that the server refuses, are errors as before. With this setting, a wrong host name is seen
    /// only in the log and in failing requests.
    pub fn connect_lazily(mut self) -> Self {
        self.servers.is_lazy = true;
        self
    }

    /// Sets for how long one of several servers does not vote after a restart or a loss of its data. Defaults to twice
    /// [`max_ttl`](Self::max_ttl) plus 5 s.
    ///
    /// For tests, in which the servers have just been started. With a shorter time than the default, two processes can have the
    /// same lock after a server restarted without its data. With zero, such a server votes at once. With a longer time, the
    /// server stays excluded for longer than needed.
    pub fn quarantine(mut self, span: Duration) -> Self {
        self.servers.quarantine = Some(span);
        self
    }

    /// Sets the user and password for the servers, fixed or from a provider that is asked anew for each connection. Defaults to
    /// those in the url, or of the client.
    ///
    /// For secrets that are kept apart from the url, give [`Credentials`](crate::credentials::Credentials), which need no percent-encoding. For
    /// passwords that rotate and tokens that expire, give a [`CredentialsProvider`]. Both take precedence over the user and
    /// password in the url.
    pub fn credentials(mut self, provider: impl CredentialsProvider) -> Self {
        self.servers.access.server = Some(Arc::new(provider));
        self
    }

    /// Sets the user and password for the sentinels themselves. Defaults to those in the url's query
    /// (`?sentinel_user=…&sentinel_password=…`), or none.
    pub fn sentinel_credentials(mut self, provider: impl CredentialsProvider) -> Self {
        self.servers.access.sentinel = Some(Arc::new(provider));
        self
    }

    /// Has an acquire succeed only if `replicas` replicas acknowledge the lock in the time `within` (by `WAIT`). Defaults to none.
    ///
    /// For a primary that fails over. If fewer replicas acknowledge in time, the lock is released. The acquire is then tried again
    /// until its wait is over, and is [`LockError::Unavailable`] after that. This narrows the window in which a fail-over forgets a
    /// lock, but does not close it. A replica that has not acknowledged may become the primary, and the others keep the lock in
    /// memory, not on disk. Renewals do not wait for replicas. Each acquire costs one more round trip, and one more to the slowest
    /// of the replicas needed. A waiter in the queue needs a request of its own to get the lock: the message alone is not enough.
    ///
    /// If `replicas` is too high, one replica that is down stops all locks. If `within` is too short, a busy replica does.
    pub fn min_replicas_acked(mut self, replicas: u32, within: Duration) -> Self {
        self.servers.replicas = Some(Replicas {
            least: replicas,
            within,
        });
        self
    }

    /// Sets which servers are trusted over TLS, and the certificate of this process. Defaults to [`Tls::new`].
    ///
    /// For `rediss://` and `valkeys://` urls. The other urls of servers on a network are then refused, so that no data is sent
    /// without TLS by mistake. The setters of [`Tls`] say what gets worse in each direction.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.servers.security.given = Some(tls);
        self
    }

    pub(super) fn settings(&self, executor: &Executor) -> Result<Settings, LockError> {
        let servers = &self.servers;
        if let Some(Replicas { least, within }) = servers.replicas {
            let (shortest, longest) = (Duration::from_millis(1), Duration::from_secs(60));
            if least == 0 || within < shortest || within > longest {
                return Err(LockError::invalid(format!(
                    "min_replicas_acked is {least} within {within:?}: choose one at least, and between {shortest:?} and \
                     {longest:?}"
                )));
            }
        }
        let check_key = self.check_key.as_ref();
        Ok(Settings {
            executor: executor.clone(),
            timing: self.timing,
            security: servers.security.clone(),
            access: servers.access.clone(),
            label: self.label.as_deref().map(Into::into),
            replicas: servers.replicas,
            scope: Scope {
                prefix: self.prefix().to_owned(),
                check_key: check_key.map(|key| format!("{}{key}", self.prefix())),
            },
        })
    }
}
