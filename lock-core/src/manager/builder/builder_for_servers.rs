//! The builder's settings that apply only to servers.

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
    /// Makes connecting succeed even if the server cannot be reached yet.
    ///
    /// Use it for a service that starts together with its server. The first connection is retried about once a second, and
    /// by each acquire. Problems that connecting would have reported, such as a missing right or an eviction policy, are
    /// then logged. A wrong url, and a user that the server refuses, are still errors. With this setting, a wrong host name
    /// is only noticed in the log and by failing requests. Defaults to failing if the server cannot be reached.
    pub fn connect_lazily(mut self) -> Self {
        self.servers.is_lazy = true;
        self
    }

    /// Sets how long one of several servers does not vote after a restart or a loss of its data.
    ///
    /// Change it only for tests whose servers have just been started. With a shorter time than the default, two processes
    /// can have the same lock after a server has restarted without its data. With zero, such a server votes at once. With a
    /// longer time, the server stays excluded for longer than necessary. Defaults to twice [`max_ttl`](Self::max_ttl) plus
    /// 5 s.
    pub fn quarantine(mut self, span: Duration) -> Self {
        self.servers.quarantine = Some(span);
        self
    }

    /// Sets the user and password for the servers, which are fixed, or come from a provider that is asked for each
    /// connection.
    ///
    /// If secrets are kept apart from the url, pass [`Credentials`](crate::credentials::Credentials), which need no
    /// percent-encoding. If passwords rotate or tokens expire, pass a [`CredentialsProvider`]. Both take precedence over
    /// the user and password in the url. Defaults to those in the url, or of the client.
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

    /// Makes an acquire succeed only if `replicas` replicas acknowledge the lock within the time `within` (by `WAIT`).
    ///
    /// Use it for a primary that may fail over. If fewer replicas acknowledge in time, the lock is released, and the
    /// acquire is retried until its wait is over; then it returns [`LockError::Unavailable`]. This narrows the window in
    /// which a fail-over forgets a lock, but does not close it: a replica that has not acknowledged may become the primary,
    /// and the others keep the lock in memory, not on disk. Renewals do not wait for replicas. Each acquire costs one more
    /// round trip, and one between the primary and the slowest of the required replicas. A waiter that is granted the lock
    /// by a message also has to send a request, because the message does not prove that replicas have acknowledged.
    ///
    /// If `replicas` is too high, a single replica that is down stops all locks. If `within` is too short, a busy replica
    /// does the same. Defaults to no replicas.
    pub fn min_replicas_acked(mut self, replicas: u32, within: Duration) -> Self {
        self.servers.replicas = Some(Replicas {
            least: replicas,
            within,
        });
        self
    }

    /// Sets which servers are trusted over TLS, and the certificate of this process, for `rediss://` and `valkeys://` urls.
    ///
    /// All other urls of servers on a network are then refused, so that no data is sent without TLS by mistake. The setters
    /// of [`Tls`] describe their trade-offs. Defaults to [`Tls::new`].
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
                    "min_replicas_acked is {least} within {within:?}: choose at least one replica, and a time between {shortest:?} and \
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
