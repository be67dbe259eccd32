//! What operators see: the holders of a key, the locks that are held, and whether the backend is fit for use.
//!
//! [`LockManager::inspect`](crate::manager::LockManager::inspect) looks at one key, [`list`](crate::manager::LockManager::list) at all that are held,
//! and [`check`](crate::manager::LockManager::check) at the backend. [`LockError::held_by`](crate::error::LockError::held_by) names the holder of a
//! lock that is busy.

use std::{fmt, time::Duration};

use crate::key::{LockKey, Shown};
pub use crate::{error::HeldBy, manager::listing::LockList, mode::LockMode};

/// The holder of a key, as [`LockManager::inspect`](crate::manager::LockManager::inspect) found it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LockInfo {
    /// For how long the lease runs unless it is renewed or released; `None` if the key has no expiry.
    pub remaining: Option<Duration>,
    /// How many waiters the key has: tasks of this manager, and other processes.
    pub waiters: usize,
    /// The holder; one of them, if there are several.
    pub holder: Holder,
    /// The mode in which it is held.
    pub mode: LockMode,
    /// How many leases hold it. A process has one for all its tasks that share a key, and one for each permit.
    pub holders: usize,
    /// The holders beside `holder`: 64 at most, and none in a [`LockList`].
    pub other_holders: Vec<Holder>,
    /// The leases that hold it, the one with most time left first: 64 at most, and one in a [`LockList`]. Since when
    /// they last is not known: servers do not keep that.
    pub leases: Vec<LeaseInfo>,
    /// For how long the result of a body that ran once is still kept, if there is one (feature `once`). Its bytes are not shown.
    pub result_kept_for: Option<Duration>,
    /// The requests that wait on the server, in the order in which they joined: 64 at most, and none in a
    /// [`LockList`]. A process has one request for each mode in which its tasks wait.
    pub queue: Vec<Waiter>,
}

/// A lease that holds a key, as [`LockManager::inspect`](crate::manager::LockManager::inspect) found it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseInfo {
    /// The process, labelled as a [`Holder`].
    pub process: Holder,
    /// For how long it runs unless it is renewed or released; `None` if it has no expiry.
    pub remaining: Option<Duration>,
    /// The number of its permit, as [`Lease::permit`](crate::lease::Lease::permit) returns it. `None` in the other modes.
    pub permit: Option<u16>,
}

/// A request in the queue of a key, as [`LockManager::inspect`](crate::manager::LockManager::inspect) found it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiter {
    /// The process, labelled as a [`Holder`].
    pub process: Holder,
    /// The mode that it waits for.
    pub mode: LockMode,
}

/// A lock of a [`LockList`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ListedLock {
    /// The key, without the manager's prefix.
    pub key: LockKey,
    /// Its holder and lease, as they were when the server was read.
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
    /// The lock is free, and only a result is kept.
    None,
}

impl Holder {
    /// The holder with this label, if it has one. Any client can write a label: it is shown, and nothing else is done with it.
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

/// What a backend knows of a key.
#[derive(Clone, Debug)]
pub(crate) struct Sighting {
    pub(crate) remaining: Option<Duration>,
    pub(crate) mode: LockMode,
    pub(crate) holders: usize,
    /// How many processes wait.
    pub(crate) waiting: usize,
    /// Of the holders, the one with most time left first: one at least, unless it is not known, and at most [`NAMED`].
    pub(crate) leases: Vec<LeaseInfo>,
    /// The first of those that wait, at most [`NAMED`].
    pub(crate) queue: Vec<Waiter>,
    pub(crate) result_kept_for: Option<Duration>,
}

impl Sighting {
    /// A lock that is free, with a result that is kept for so long.
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

/// So many holders and waiters are named, at most: a look stays short on the server.
pub(crate) const NAMED: usize = 64;

/// What [`LockManager::check`](crate::manager::LockManager::check) found of a backend that works.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Health {
    /// How long one request and its reply took.
    pub round_trip: Duration,
    /// The conditions that work today and may cause trouble later. Empty if there is none.
    pub warnings: Vec<Warning>,
    /// The servers that were examined: none for locks inside the process, several for a cluster and Redlock.
    pub servers: Vec<ServerInfo>,
}

/// A server as a manager found it, behind all proxies: one of [`Health::servers`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerInfo {
    /// Its url, without the user and the password.
    pub address: String,
    /// Its name for itself, as in `redis`; `None` if it does not say, or a proxy does not forward the question.
    pub kind: Option<String>,
    /// As in `7.0.15`; `None` like `kind`.
    pub version: Option<String>,
    /// The version of the protocol that is spoken with it, 2 or 3.
    pub protocol: u8,
    /// Whether scripts can be run. Without them, locks are exclusive only, and no body runs once.
    pub scripts: bool,
    /// Whether a waiter is notified when the lock is passed to it. Otherwise waiters poll.
    pub notifies: bool,
}

/// A condition that works today and may cause trouble later: one of [`Health::warnings`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Warning {
    /// What it is about.
    pub topic: Topic,
    /// The condition, and the remedy.
    pub text: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What a [`Warning`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Topic {
    /// The clock of a server.
    Clock,
    /// A server that may delete locks when its memory is full.
    Eviction,
    /// How long a server takes to answer.
    Latency,
    /// What is not known, because a proxy in front of a server does not forward the question.
    Proxy,
    /// What the server's user may do.
    Rights,
    /// A server of several (Redlock) that does not vote.
    Votes,
}

impl Topic {
    pub(crate) fn warning(self, text: impl Into<String>) -> Warning {
        let (topic, text) = (self, text.into());
        Warning { topic, text }
    }
}
