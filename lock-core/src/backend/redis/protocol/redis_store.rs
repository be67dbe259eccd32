//! A store on Redis or Valkey: its servers, and the state that is remembered about them.

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

/// Locks on one primary, wherever it is, or on the primaries of a cluster.
#[derive(Clone)]
pub(crate) struct RedisStore(pub(crate) Arc<RedisState>);

pub(crate) struct RedisState {
    pub(crate) executor: Executor,
    pub(crate) servers: RedisServers,
    /// Marks of the keys that were contended recently.
    ///
    /// A key without contention is taken by plain commands, which cost the server half as much as a script. They cannot add an
    /// entry to the queue, though, so if the key is busy, that takes a second round trip. For a key that was contended, the
    /// script is therefore sent at once.
    pub(crate) contended: Box<[AtomicBool]>,
    pub(crate) timing: Timing,
    pub(crate) scope: Scope,
    /// `true` if the server is one of several that vote, which use only scripts, and no grants.
    pub(crate) is_one_of_several: bool,
}

/// The number of marks. Keys may share a mark, which only costs them speed. The hash that assigns them is secret, so that no
/// client can choose a key to slow down another client's key.
pub(crate) const MARKS: usize = 1024;

/// The prefix of the locks' keys, and the key that represents them in a check.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scope {
    pub(crate) prefix: String,
    /// Includes the prefix.
    pub(crate) check_key: Option<String>,
}

/// The settings of a manager for its servers.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    /// The executor of the manager's work.
    pub(crate) executor: Executor,
    pub(crate) timing: Timing,
    pub(crate) security: Security,
    pub(crate) access: Access,
    /// The label of the manager, if it was given one.
    pub(crate) label: Option<Arc<str>>,
    pub(crate) replicas: Option<Replicas>,
    pub(crate) scope: Scope,
}

/// The treatment of an acquire that lacks the required replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acked {
    Must,
    NeedNot,
}

impl Scope {
    /// Returns the warning if no key represents those of the locks.
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
    /// Returns `true` if the locks are on one fixed server: neither sentinels nor a cluster can replace it with
    /// another.
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

    /// Returns `true` if contention is expected for a key.
    pub(crate) fn expects_others(&self, key: &LockKey) -> bool {
        self.mark_of(key).load(Relaxed)
    }

    /// Notes whether other requests wanted a key.
    pub(crate) fn note_others(&self, key: &LockKey, others: bool) {
        let mark = self.mark_of(key);
        // The mark rarely changes, and a write would remove it from the caches of other threads.
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
