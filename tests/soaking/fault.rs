//! The faults, and which of them suspend a promise.

use std::time::Duration;

use lock_tests::{Direction, Scope};

use crate::topology::{Sides, Topology};

/// One fault, with all numbers that were drawn for it; it is healed when its time is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// This many contenders from this place on are killed, and started again.
    KillContenders {
        place: u64,
        count: u64,
    },
    /// This many contenders from this place on are stopped for this time.
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
    /// The server that has a key is killed, another takes over, and the killed one comes back as its replica.
    FailOver {
        key: u64,
    },
    /// The server that has a key is stopped until another has taken over, and then goes on in its old role.
    FailOverByStop {
        key: u64,
    },
    PlannedFailOver {
        key: u64,
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
    /// The frame with this number is lost, and no later frame arrives.
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

/// The fate of a server's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Data {
    Kept,
    Lost,
}

/// The locks that are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wipes {
    All,
    Key(u64),
}

/// The connections that are closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clients {
    All,
    Subscribed,
}

/// The commands that wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Paused {
    All,
    Writes,
}

/// The keys from which a fault chooses: it deletes or steals one, or hits the server that has it.
pub(crate) const KEYS: [&str; 6] = ["hot-0", "hot-1", "few-2", "pair-0", "pair-1", "long"];

/// One of [`KEYS`].
pub(crate) fn key(number: u64) -> &'static str {
    let count = u64::try_from(KEYS.len()).expect("a few");
    KEYS[usize::try_from(number % count).expect("less than a few")]
}

/// One of [`KEYS`] with the prefix that it has on the server.
pub(crate) fn full_key(number: u64) -> String {
    format!("lock:{}", key(number))
}

impl Fault {
    /// The name under which it is counted.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::KillContenders { .. } => "contenders killed",
            Self::StopContenders { .. } => "contenders stopped",
            Self::StopServer { .. } => "server stopped",
            Self::RestartServer {
                data: Data::Kept, ..
            } => "server killed, data kept",
            Self::RestartServer {
                data: Data::Lost, ..
            } => "server killed, data lost",
            Self::FailOver { .. } => "fail-over by kill",
            Self::FailOverByStop { .. } => "fail-over by stop",
            Self::PlannedFailOver { .. } => "fail-over as planned",
            Self::MoveSlot { .. } => "slot moved",
            Self::Delay { .. } => "delay",
            Self::LoseFrame {
                direction: Direction::Requests,
                ..
            } => "request lost",
            Self::LoseFrame {
                direction: Direction::Replies,
                ..
            } => "reply lost",
            Self::BlackHole {
                scope: Scope::Existing,
                ..
            } => "black hole, existing",
            Self::BlackHole {
                scope: Scope::All, ..
            } => "black hole, all",
            Self::Reset { .. } => "reset",
            Self::HalfClose { .. } => "half close",
            Self::FlushScripts { .. } => "scripts flushed",
            Self::KillClients { .. } => "clients killed",
            Self::FlushAll { .. } => "data flushed",
            Self::DeleteKey { .. } => "key deleted",
            Self::StealKey { .. } => "key stolen",
            Self::OutOfMemory { .. } => "out of memory",
            Self::Pause { .. } => "clients paused",
            Self::Sleep { .. } => "server asleep",
        }
    }

    /// The locks that are gone from all servers after it: all locks, or the lock of one key.
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

    /// Whether exclusion is not promised while it lasts. With several independent servers, exclusion is always promised: only one
    /// of them loses its data at a time.
    pub(crate) fn excuses_overlaps(self, topology: Topology) -> bool {
        match self {
            Self::RestartServer { data, .. } => data == Data::Lost && topology != Topology::Redlock,
            Self::FailOver { .. }
            | Self::FailOverByStop { .. }
            | Self::PlannedFailOver { .. }
            | Self::FlushAll { .. }
            | Self::DeleteKey { .. }
            | Self::StealKey { .. } => true,
            _ => false,
        }
    }

    /// Whether a key may have two fencing clocks while it lasts: of two primaries, or since the first one is lost. Redlock has no
    /// such clock.
    pub(crate) fn makes_other_clocks(self, topology: Topology) -> bool {
        match self {
            Self::FailOver { .. } | Self::FailOverByStop { .. } | Self::PlannedFailOver { .. } => {
                true
            }
            Self::FlushAll { .. } => topology != Topology::Redlock,
            _ => false,
        }
    }
}
