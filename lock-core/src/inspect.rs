//! The operators' view: the holders of a key, the locks that are held, and the health of the backend.
//!
//! [`LockManager::inspect`](crate::manager::LockManager::inspect) examines one key,
//! [`list`](crate::manager::LockManager::list) finds all keys that are held, and
//! [`check`](crate::manager::LockManager::check) examines the backend.
//! [`LockError::held_by`](crate::error::LockError::held_by) names the holder of a busy lock.
//!
//! # Examples
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), lock_core::LockError> {
//! # let locks = lock_core::LockManager::in_memory();
//! # let guard = locks.acquire("order:42", lock_core::LockOptions::default()).await?;
//! if let Some(info) = locks.inspect("order:42").await? {
//!     println!("held by {}, and {} are waiting", info.holder, info.waiters);
//! }
//! for warning in locks.check().await?.warnings {
//!     println!("{warning}");
//! }
//! # guard.release().await
//! # }
//! ```

use std::{fmt, time::Duration};

use crate::key::{LockKey, Shown};
pub use crate::{error::HeldBy, manager::listing::LockList, mode::LockMode};

/// The state of a key, as [`LockManager::inspect`](crate::manager::LockManager::inspect) found it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LockInfo {
    /// How much longer the lease lasts unless it is renewed or released; `None` if the key has no expiry.
    pub remaining: Option<Duration>,
    /// The number of waiters: tasks of this manager, and other processes.
    pub waiters: usize,
    /// The holder, or one of them if there are several.
    pub holder: Holder,
    /// The mode in which the lock is held.
    pub mode: LockMode,
    /// The number of leases that hold the key. A process has one for all its tasks that share a key, and one for each
    /// permit.
    pub holders: usize,
    /// The holders other than `holder`: at most 64, and none in a [`LockList`].
    pub other_holders: Vec<Holder>,
    /// The leases that hold the key, starting with the one that has the most time left: at most 64, and one in a
    /// [`LockList`]. It is unknown when they began, because servers do not store that.
    pub leases: Vec<LeaseInfo>,
    /// How much longer the result of a body that ran once is kept, if there is one (feature `once`). The result itself is
    /// not shown.
    pub result_kept_for: Option<Duration>,
    /// The requests that wait on the server, in order of arrival: at most 64, and none in a [`LockList`]. A process has one
    /// request for each mode in which its tasks wait.
    pub queue: Vec<Waiter>,
}

/// A lease that holds a key, as [`LockManager::inspect`](crate::manager::LockManager::inspect) found it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseInfo {
    /// The process that has the lease.
    pub process: Holder,
    /// How much longer the lease lasts unless it is renewed or released; `None` if it has no expiry.
    pub remaining: Option<Duration>,
    /// The number of its permit, as returned by [`Lease::permit`](crate::lease::Lease::permit); `None` in the other modes.
    pub permit: Option<u16>,
}

/// A request in the queue of a key, as [`LockManager::inspect`](crate::manager::LockManager::inspect) found it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiter {
    /// The waiting process.
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
    /// The state of the lock when the server was read.
    pub info: LockInfo,
}

/// The client that has a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Holder {
    /// A process that uses this library: its [label](crate::manager::builder::LockManagerBuilder::label), or its host and
    /// process id, as in `web-3/4711`.
    Ours(String),
    /// Another library or a script.
    Foreign,
    /// The lock is free, and only a result is stored.
    None,
}

impl Holder {
    /// Returns the holder with this label, if it has one. Since any client can write a label, it is only displayed, and
    /// never relied on.
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
    /// The number of waiting processes.
    pub(crate) waiting: usize,
    /// The leases that hold the key, starting with the one that has the most time left: at most [`NAMED`]. There is at
    /// least one, unless the holder is unknown.
    pub(crate) leases: Vec<LeaseInfo>,
    /// The first waiting requests, at most [`NAMED`].
    pub(crate) queue: Vec<Waiter>,
    pub(crate) result_kept_for: Option<Duration>,
}

impl Sighting {
    /// Returns the state of a free lock whose stored result is kept for this long.
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
    /// The conditions that may cause trouble later, although everything works now. Empty if there are none.
    pub warnings: Vec<Warning>,
    /// The servers that were examined: none for locks inside the process, several for a cluster and for Redlock.
    pub servers: Vec<ServerInfo>,
}

/// A server as the manager sees it, even behind proxies: one of [`Health::servers`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerInfo {
    /// The server's url, without the user and the password.
    pub address: String,
    /// The name that the server reports for itself, such as `redis`; `None` if it reports none, or if a proxy does not
    /// forward the question.
    pub kind: Option<String>,
    /// The server's version, such as `7.0.15`; `None` in the same cases as `kind`.
    pub version: Option<String>,
    /// The version of the RESP protocol that is spoken with the server, 2 or 3.
    pub protocol: u8,
    /// `true` if scripts can be run. Without them, all locks are exclusive, and `run_once` is not available.
    pub scripts: bool,
    /// `true` if a waiter is notified when the lock is granted to it. Otherwise waiters poll.
    pub notifies: bool,
}

/// A condition that may cause trouble later, although everything works now: one of [`Health::warnings`].
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
    /// The time that a server takes to reply.
    Latency,
    /// Facts that remain unknown, because a proxy in front of a server does not forward the question.
    Proxy,
    /// The rights of the server's user.
    Rights,
    /// One of several servers (Redlock) that does not vote at present.
    Votes,
}

impl Topic {
    pub(crate) fn warning(self, text: impl Into<String>) -> Warning {
        let (topic, text) = (self, text.into());
        Warning { topic, text }
    }
}
