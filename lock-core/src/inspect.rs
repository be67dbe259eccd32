//! What operators see: the holder of a key, and whether the backend is fit for use.

use std::{fmt, time::Duration};

use crate::mode::LockMode;

/// The holder of a key, as [`LockManager::inspect`](crate::LockManager::inspect) found it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LockInfo {
    /// For how long the lease runs unless it is renewed or released; `None`: without an expiry.
    pub remaining: Option<Duration>,
    /// How many wait for the key: tasks of this manager, and other processes.
    pub waiters: usize,
    /// The holder; one of them, if there are several.
    pub holder: Holder,
    /// The mode in which it is held.
    pub mode: LockMode,
    /// How many leases hold it. A process has one for all its tasks that share a key, and one for each permit.
    pub holders: usize,
}

/// The kind of client that has a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Holder {
    /// A process that uses this library, labelled with its host and process id, as in `web-3/4711`.
    Ours(String),
    /// Another library or a script.
    Foreign,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ours(label) => f.write_str(label),
            Self::Foreign => f.write_str("another client"),
        }
    }
}

/// What a backend knows of a key.
#[derive(Clone, Debug)]
pub(crate) struct Sighting {
    pub(crate) remaining: Option<Duration>,
    pub(crate) holder: Holder,
    pub(crate) mode: LockMode,
    pub(crate) holders: usize,
    /// How many processes wait.
    pub(crate) waiting: usize,
}

/// What [`LockManager::check`](crate::LockManager::check) found of a backend that works.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Health {
    /// How long one request and its reply took.
    pub round_trip: Duration,
    /// What works today and may cause trouble later, each with the remedy; empty if nothing.
    pub warnings: Vec<String>,
}
