//! The operators' view: the holders of a key, the locks that are held, and the health of the backend.
//!
//! [`LockManager::inspect`](crate::manager::LockManager::inspect) examines one key, [`list`](crate::manager::LockManager::list)
//! all keys that are held, and [`check`](crate::manager::LockManager::check) the backend.
//! [`LockError::held_by`](crate::error::LockError::held_by) names the holder of a busy lock.

use std::{fmt, time::Duration};

use crate::key::{LockKey, Shown};
pub use crate::{error::HeldBy, manager::listing::LockList, mode::LockMode};

/// The holder of a key, as [`LockManager::inspect`](crate::manager::LockManager::inspect) found it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LockInfo {
    /// For how long the lease continues unless it is renewed or released; `None` if the key has no expiry.
    pub remaining: Option<Duration>,
    /// The number of waiters of the key: tasks of this manager, and other processes.
    pub waiters: usize,
    /// The holder, or one of them if there are several.
    pub holder: Holder,
    /// The mode in which the lock is held.
    pub mode: LockMode,
    /// The number of leases that hold it. A process has one for all its tasks that share a key, and one for each permit.
    pub holders: usize,
    /// The holders other than `holder`: at most 64, and none in a [`LockList`].
    pub other_holders: Vec<Holder>,
    /// The leases that hold it, the one with the most time left first: at most 64, and one in a [`LockList`]. The time at which
    /// they began is unknown, because servers do not store it.
    pub leases: Vec<LeaseInfo>,
    /// For how long the result of a body that ran once is still kept, if there is one (feature `once`). Its bytes are not
    /// shown.
    pub result_kept_for: Option<Duration>,
    /// The requests that wait on the server, in the order in which they joined: at most 64, and none in a [`LockList`]. A
    /// process has one request for each mode in which its tasks wait.
    pub queue: Vec<Waiter>,
}

/// A lease that holds a key, as [`LockManager::inspect`](crate::manager::LockManager::inspect) found it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseInfo {
    /// The process, labelled like a [`Holder`].
    pub process: Holder,
    /// For how long the lease continues unless it is renewed or released; `None` if it has no expiry.
    pub remaining: Option<Duration>,
    /// The number of its permit, as [`Lease::permit`](crate::lease::Lease::permit) returns it. `None` in the other modes.
    pub permit: Option<u16>,
}

/// A request in the queue of a key, as [`LockManager::inspect`](crate::manager::LockManager::inspect) found it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiter {
    /// The process, labelled like a [`Holder`].
    pub process: Holder,
    /// The mode that the request waits for.
    pub mode: LockMode,
}

/// A lock in a [`LockList`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ListedLock {
    /// The key, without the manager's prefix.
    pub key: LockKey,
    /// The holder and the lease, as they were when the server was read.
    pub info: LockInfo,
}

/// The kind of client that has a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Holder {
    /// A process that uses this library: its [label](crate::manager::builder::LockManagerBuilder::label), or its host and process id, as in
    /// `web-3/4711`.
    Ours(String),
    /// Another library or a script.
    Foreign,
    /// The lock is free, and only a result is stored.
    None,
}

impl Holder {
    /// Returns the holder with this label, if it has one. Any client can write a label, so it is only shown, and never relied
    /// on.
    pub(crate) fn labelled(label: Option<&str>) -> Self {
        label.map_or(Self::Foreign, |label| Self::Ours(Shown(label).to_string()))
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ours(label) => f.write_str(label),
            Self::Foreign => f.write_str("another client"),
            Self::None => f.write_str("none"),
        }
    }
}

/// The facts that a backend knows about a key.
#[derive(Clone, Debug)]
pub(crate) struct Sighting {
    pub(crate) remaining: Option<Duration>,
    pub(crate) mode: LockMode,
    pub(crate) holders: usize,
    /// The number of processes that wait.
    pub(crate) waiting: usize,
    /// The leases that hold it, the one with the most time left first: at least one, unless it is unknown, and at most
    /// [`NAMED`].
    pub(crate) leases: Vec<LeaseInfo>,
    /// The first waiting requests, at most [`NAMED`].
    pub(crate) queue: Vec<Waiter>,
    pub(crate) result_kept_for: Option<Duration>,
}

impl Sighting {
    /// A free lock with a result that is kept for this long.
    pub(crate) fn of_result(kept_for: Duration) -> Self {
        Self {
            remaining: None,
            mode: LockMode::Exclusive,
            holders: 0,
            waiting: 0,
            leases: Vec::new(),
            queue: Vec::new(),
            result_kept_for: Some(kept_for),
        }
    }
}

/// The maximum number of holders and waiters that are named, so that inspecting a key stays cheap for the server.
pub(crate) const NAMED: usize = 64;

/// The findings of [`LockManager::check`](crate::manager::LockManager::check) about a backend that works.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Health {
    /// The time that one request and its reply took.
    pub round_trip: Duration,
    /// The conditions that work today and may cause trouble later. Empty if there are none.
    pub warnings: Vec<Warning>,
    /// The servers that were examined: none for locks inside the process, several for a cluster and for Redlock.
    pub servers: Vec<ServerInfo>,
}

/// A server as a manager found it, past all proxies: one of [`Health::servers`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerInfo {
    /// The server's url, without the user and the password.
    pub address: String,
    /// The server's name for itself, as in `redis`; `None` if it does not report one, or a proxy does not forward the question.
    pub kind: Option<String>,
    /// The server's version, as in `7.0.15`; `None` in the same cases as `kind`.
    pub version: Option<String>,
    /// The version of the protocol that is spoken with the server, 2 or 3.
    pub protocol: u8,
    /// `true` if scripts can be run. Without them, locks are exclusive only, and run once is not available.
    pub scripts: bool,
    /// `true` if a waiter is notified when the lock is granted to it. Otherwise waiters poll.
    pub notifies: bool,
}

/// A condition that works today and may cause trouble later: one of [`Health::warnings`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Warning {
    /// The subject of the warning.
    pub topic: Topic,
    /// The condition, and the remedy.
    pub text: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The subject of a [`Warning`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Topic {
    /// The clock of a server.
    Clock,
    /// A server that may delete locks when its memory is full.
    Eviction,
    /// The time that a server takes to answer.
    Latency,
    /// Facts that are unknown, because a proxy in front of a server does not forward the question.
    Proxy,
    /// The rights of the server's user.
    Rights,
    /// One of several servers (Redlock) that does not vote.
    Votes,
}

impl Topic {
    pub(crate) fn warning(self, text: impl Into<String>) -> Warning {
        let (topic, text) = (self, text.into());
        Warning { topic, text }
    }
}
