//! The faults, and the promises that they suspend.

use std::time::Duration;

use lock_tests::{Direction, Scope};

use crate::topology::{Sides, Topology};

/// A fault, with all numbers that were drawn for it. It is healed when its time is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// This many contenders are killed from this place on, and started again.
    KillContenders {
        place: u64,
        count: u64,
    },
    /// This many contenders are stopped from this place on.
    StopContenders {
        place: u64,
        count: u64,
        span: Duration,
    },
    StopServer {
        node: u64,
        span: Duration,
    },
    RestartServer {
        node: u64,
        data: Data,
        span: Duration,
    },
    /// Another server takes over from the server of a key.
    FailOver {
        key: u64,
        by: Cause,
    },
    MoveSlot {
        key: u64,
        target: u64,
    },
    Delay {
        node: u64,
        sides: Sides,
        direction: Direction,
        delay: Duration,
    },
    /// The frame with this number and all later ones are lost.
    LoseFrame {
        node: u64,
        sides: Sides,
        direction: Direction,
        nth: u64,
    },
    BlackHole {
        node: u64,
        sides: Sides,
        scope: Scope,
        span: Duration,
    },
    Reset {
        node: u64,
        sides: Sides,
    },
    HalfClose {
        node: u64,
        sides: Sides,
        direction: Direction,
    },
    FlushScripts {
        node: u64,
    },
    KillClients {
        node: u64,
        clients: Clients,
    },
    FlushAll {
        node: u64,
    },
    DeleteKey {
        key: u64,
    },
    /// The key is overwritten by the lock of another library.
    StealKey {
        key: u64,
    },
    OutOfMemory {
        node: u64,
        span: Duration,
    },
    Pause {
        node: u64,
        what: Paused,
        span: Duration,
    },
    Sleep {
        node: u64,
        span: Duration,
    },
}

/// The promises that a fault suspends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Suspends {
    Nothing,
    Exclusion,
    /// Two processes may also get the same fencing token, from two fencing clocks.
    ExclusionAndClocks,
}

/// The fate of a server's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Data {
    Kept,
    Lost,
}

/// The cause of a fail-over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The server is killed, and returns as a replica of the other one.
    Kill,
    /// The server is stopped until the other one has taken over, and then continues in its old role.
    Stop,
    Command,
}

/// The locks that a fault deletes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wipes {
    All,
    Key(u64),
}

/// The connections that a fault closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clients {
    All,
    Subscribed,
}

/// The commands that a pause delays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Paused {
    All,
    Writes,
}

/// The keys from which a fault chooses, to delete or steal one, or to hit its server.
pub(crate) const KEYS: [&str; 6] = ["hot-0", "hot-1", "few-2", "pair-0", "pair-1", "long"];

/// Returns one of [`KEYS`].
pub(crate) fn key(number: u64) -> &'static str {
    let count = u64::try_from(KEYS.len()).expect("a few");
    KEYS[usize::try_from(number % count).expect("a few")]
}

/// Returns one of [`KEYS`] with its prefix on the server.
pub(crate) fn full_key(number: u64) -> String {
    format!("lock:{}", key(number))
}

impl Fault {
    /// Returns the name under which it is counted.
    pub(crate) fn name(self) -> String {
        let text = format!("{self:?}");
        let name = text.split(' ').next().unwrap_or_default();
        match self {
            Self::RestartServer { data, .. } => format!("{name}, data {data:?}"),
            Self::FailOver { by, .. } => format!("{name} by {by:?}"),
            _ => name.to_owned(),
        }
    }

    /// Returns the locks that are gone from all servers after it.
    pub(crate) fn wipes(self, topology: Topology) -> Option<Wipes> {
        match self {
            Self::RestartServer {
                data: Data::Lost, ..
            } if topology.is_single() => Some(Wipes::All),
            // In a cluster, the flush hits only one of the servers.
            Self::FlushAll { .. } if topology.nodes() == 1 => Some(Wipes::All),
            Self::DeleteKey { key } => Some(Wipes::Key(key)),
            _ => None,
        }
    }

    /// Returns the promises that do not hold while it lasts.
    ///
    /// With several independent servers, all of them hold: only one server loses its data at a time, and there is no fencing
    /// clock. Elsewhere, a fail-over or a flush makes another clock.
    pub(crate) fn suspends(self, topology: Topology) -> Suspends {
        match self {
            Self::FlushAll { .. } | Self::RestartServer { .. } if topology == Topology::Redlock => {
                Suspends::Nothing
            }
            Self::FailOver { .. } | Self::FlushAll { .. } => Suspends::ExclusionAndClocks,
            Self::RestartServer {
                data: Data::Lost, ..
            }
            | Self::DeleteKey { .. }
            | Self::StealKey { .. } => Suspends::Exclusion,
            _ => Suspends::Nothing,
        }
    }
}
