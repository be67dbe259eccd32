//! Where a primary is, by those that know: the sentinels. How they are asked is not the matter of a connection.

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

/// What a primary is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// A connection is to be made.
    Connect,
    /// There is a connection, which is left only for a later primary.
    Watch,
}

/// Knows where the primary is: the sentinels do.
pub(crate) trait PrimaryFinder: fmt::Debug + Send + Sync {
    /// Where the primary is now. Dropping the future loses only replies.
    fn primary(self: Arc<Self>, need: Need) -> Reply<KnownPrimary>;

    /// Whether no later choice than this one was made.
    fn is_still(&self, primary: &KnownPrimary) -> bool;

    /// Notified when connections may lead to a primary that was replaced: it was silent for longer than a reply may take, or another
    /// one was chosen.
    fn doubted(&self) -> &Notify;
}

impl KnownPrimary {
    /// Whether both are the same server, whatever their epochs.
    pub(crate) fn is_same_server(&self, other: &Self) -> bool {
        self.address() == other.address()
    }

    /// The host and the port.
    pub(crate) fn address(&self) -> (&str, u16) {
        (&self.host, self.port)
    }
}
