//! What a store on Redis or Valkey has: its servers, and what is remembered of them.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use crate::{
    backend::{
        redis::{
            topology::{Access, Replicas, servers::RedisServers},
            transport::address::security::Security,
        },
        timing::Timing,
    },
    inspect::{Topic, Warning},
    key::LockKey,
    runtime::executor::Executor,
};

/// Locks on one primary, wherever it is, or on those of a cluster.
#[derive(Clone)]
pub(crate) struct RedisStore(pub(crate) Arc<RedisState>);

pub(crate) struct RedisState {
    pub(crate) executor: Executor,
    pub(crate) servers: RedisServers,
    /// Which keys were contended lately.
    ///
    /// A key without contention is taken by plain commands, which cost the server half of what a script does. They cannot add an
    /// entry to the queue, though: if the key is busy, that takes a second round trip. So for a key that was contended, the script is
    /// sent at once.
    pub(crate) contended: Box<[AtomicBool]>,
    pub(crate) timing: Timing,
    pub(crate) scope: Scope,
    /// Whether the server is one of several that vote: by scripts only, and without grants.
    pub(crate) is_one_of_several: bool,
}

/// Some keys share a mark, which costs them speed and nothing else. Which ones is secret, as the hash of a key is, so that no client can
/// slow down another's key by choosing its own.
pub(crate) const MARKS: usize = 1024;

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
pub(crate) enum Acked {
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
        let only = self.0.servers.only();
        only.is_some_and(|server| server.connection.sentinels().is_none())
    }

    pub(crate) fn within(&self) -> Duration {
        self.0.timing.command_timeout
    }

    fn mark_of(&self, key: &LockKey) -> &AtomicBool {
        let mark = usize::try_from(key.hashed() % MARKS as u64);
        &self.0.contended[mark.unwrap_or(0)]
    }

    /// Whether contention is expected for a key.
    pub(crate) fn expects_others(&self, key: &LockKey) -> bool {
        self.mark_of(key).load(Relaxed)
    }

    /// Notes whether others wanted a key.
    pub(crate) fn note_others(&self, key: &LockKey, others: bool) {
        let mark = self.mark_of(key);
        // The mark mostly stays as it is, and a write would remove it from the caches of other threads.
        if mark.load(Relaxed) != others {
            mark.store(others, Relaxed);
        }
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.servers.address().fmt(f)
    }
}
