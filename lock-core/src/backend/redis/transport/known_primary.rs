//! The location of a primary, as reported by the sentinels. How they are asked is not the concern of a connection.

use std::{fmt, sync::Arc};

use tokio::sync::Notify;

use crate::backend::Reply;

/// A primary, as a sentinel names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KnownPrimary {
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Grows with each fail-over.
    pub(crate) epoch: u64,
}

/// The purpose for which a primary is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// To make a connection.
    Connect,
    /// To watch an existing connection, which is left only for a later primary.
    Watch,
}

/// Finds the primary, by asking the sentinels.
pub(crate) trait PrimaryFinder: fmt::Debug + Send + Sync {
    /// Returns the current primary. Dropping the future loses only replies.
    fn primary(self: Arc<Self>, need: Need) -> Reply<KnownPrimary>;

    /// Returns `true` if no other primary was chosen after this one.
    fn is_still(&self, primary: &KnownPrimary) -> bool;

    /// Returns the notifier of doubts: connections may lead to a primary that was replaced, because it was silent for longer
    /// than a reply may take, or because another one was chosen.
    fn doubted(&self) -> &Notify;
}

impl KnownPrimary {
    /// Returns `true` if both are the same server, regardless of their epochs.
    pub(crate) fn is_same_server(&self, other: &Self) -> bool {
        self.address() == other.address()
    }

    /// Returns the host and the port.
    pub(crate) fn address(&self) -> (&str, u16) {
        (&self.host, self.port)
    }
}
