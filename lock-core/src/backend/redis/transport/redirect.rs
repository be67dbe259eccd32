//! The redirect that a cluster node sends for a key of another node.

use std::{error::Error, fmt};

use redis::{RedisError, ServerError, ServerErrorKind};

/// The number of slots in a cluster.
pub(crate) const SLOTS: u16 = 16_384;

/// The redirect to another node of the cluster, which has the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Redirect {
    pub(crate) slot: u16,
    /// The host; empty for the host of the node that sent the redirect.
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) node_role: NodeRole,
}

/// The node of a cluster to which a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeRole {
    /// The node that serves the slot. If a redirect names it, this holds for all later requests.
    ServesSlot,
    /// The node to which the slot is being moved, and which already has the key. A redirect to it applies to a single request.
    MigrationTarget,
}

impl Redirect {
    /// Reads `MOVED 3999 127.0.0.1:6381`.
    pub(crate) fn read(error: &ServerError) -> Option<Self> {
        let node_role = match error.kind()? {
            ServerErrorKind::Moved => NodeRole::ServesSlot,
            ServerErrorKind::Ask => NodeRole::MigrationTarget,
            _ => return None,
        };
        let error = RedisError::from(error.clone());
        let (endpoint, slot) = error.redirect_node()?;
        let (host, port) = endpoint.rsplit_once(':')?;
        Some(Self {
            slot: Some(slot).filter(|slot| *slot < SLOTS)?,
            host: host.to_owned(),
            port: port.parse().ok()?,
            node_role,
        })
    }
}

impl fmt::Display for Redirect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port, .. } = self;
        write!(f, "the key is now at {host}:{port}, a node of a cluster")
    }
}

impl Error for Redirect {}
