//! What a store on Redis or Valkey has: its servers, and what is remembered of them.

use std::{
    fmt,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use crate::{
    inspect::{Topic, Warning},
    runtime::executor::Executor,
    store::{
        redis::{
            address::transport::Security,
            contention::Contention,
            topology::{Access, servers::RedisServers, settings::Replicas},
        },
        timing::Timing,
    },
};

/// Locks on one primary, wherever it is, or on those of a cluster.
#[derive(Clone)]
pub(crate) struct RedisStore(pub(super) Arc<RedisState>);

pub(super) struct RedisState {
    pub(super) executor: Executor,
    pub(super) servers: RedisServers,
    pub(super) contention: Arc<Contention>,
    /// Whether the eviction policy was read.
    pub(super) looked: AtomicBool,
    /// Whether the sentinels are watched.
    pub(super) watched: AtomicBool,
    pub(super) timing: Timing,
    pub(super) scope: Scope,
    /// Whether the server is one of several that vote: by scripts only, and without grants.
    pub(super) is_one_of_several: bool,
}

/// Which keys locks have, and which of them stands for all.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scope {
    pub(crate) prefix: String,
    /// Includes the prefix.
    pub(crate) check_key: Option<String>,
}

/// What a manager needs from its servers.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    /// Where the manager's work runs.
    pub(crate) executor: Executor,
    pub(crate) timing: Timing,
    pub(crate) security: Security,
    pub(crate) access: Access,
    /// The label of the manager, if it was given one.
    pub(crate) label: Option<Arc<str>>,
    pub(crate) replicas: Option<Replicas>,
    pub(crate) scope: Scope,
}

/// Whether an acquire counts without the required replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Acked {
    Must,
    NeedNot,
}

impl Scope {
    /// The warning if no key stands for those of the locks.
    pub(crate) fn warning(&self) -> Option<Warning> {
        let is_unknown = self.prefix.is_empty() && self.check_key.is_none();
        is_unknown.then(|| {
            Topic::Rights.warning(
                "the key prefix is empty, so whether this user may use the keys of its locks was not tried: name one of them by \
                 the builder's `check_key`",
            )
        })
    }
}

impl RedisStore {
    /// Whether no other server can take this one's place unnoticed: neither sentinels nor a cluster name one.
    pub(crate) fn is_one_server(&self) -> bool {
        match &self.0.servers {
            RedisServers::One(server, _) => server.connection.sentinels().is_none(),
            RedisServers::Several(_) => false,
        }
    }

    pub(super) fn within(&self) -> Duration {
        self.0.timing.command_timeout
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.servers.address().fmt(f)
    }
}
