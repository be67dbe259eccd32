//! Which process this is: a manager works only in the one that made it.
//!
//! A fork copies the memory, with every owner token and every lease. Parent and child share the sockets, and the file descriptors
//! that wake the manager's thread. The thread itself is not in the child. So a child that used an inherited manager would write
//! between its parent's commands, or wait for a reply that the parent reads. Every call is refused in the child, before it locks a
//! mutex, which another thread may have locked at the moment of the fork. A value that is dropped in the child is leaked, and not
//! taken apart. To close a connection of tokio's would shut the shared socket down and remove it from the shared poll.
//!
//! State of the process, rather than of a manager, is safe to inherit. Connection numbers are counted on, and never leave the
//! process (`backend/in_flight.rs`). Each manager makes the pauses differ (`runtime/jitter.rs`). The secret
//! behind the hashes of keys stays secret (`key.rs`). The table of hash tags and the scripts are
//! the same everywhere (`backend/redis/topology/companions.rs`, `backend/redis/protocol/scripts/mod.rs`). The manager of the process and those of
//! its tasks are refused like any other (`manager/default_manager.rs`), and so are the leases of its bodies (`driver/reentry.rs`). Random
//! values that were drawn in advance belong to a manager (`backend/owner_token.rs`).
//!
//! Two limits remain. First, the child never finishes a table or a script that another thread was initialising for the first time
//! at the moment of the fork. Nor does it unlock a mutex that another thread had locked. Second, a child in a namespace of its own
//! may have its parent's process id.
//!
//! The same holds in memory. A copy there would have no renewals, and would hide the mistake until there is a server. Rejected: a
//! handler that the system calls at a fork, and memory that the system wipes then. Both take unsafe code.
//!
//! As a second barrier, a connection writes nothing in another process, and no work is handed to a thread there.

use std::{cell::Cell, process, time::Duration};

use crate::{moment::Moment, runtime::clock::Clock};

/// The process that made something. No other process may use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OriginProcess(u32);

/// How long a thread's check of its process stays valid. A fork takes longer, however little memory it copies (120 µs at the least
/// where this was measured). So a check that a child's thread inherited from its parent is older than this.
const SHORTER_THAN_A_FORK: Duration = Duration::from_micros(10);

impl OriginProcess {
    pub(crate) fn this_process() -> Self {
        Self(process::id())
    }

    /// Whether the caller runs in this process.
    pub(crate) fn is_here(self) -> bool {
        self.is_here_at(Clock::Boot.now())
    }

    /// The same for a caller that has read the time, which is of [`Clock::Boot`]. A thread asks the system once in ten microseconds.
    /// That is a call of the kernel, and takes ten times as long as to read the clock.
    pub(crate) fn is_here_at(self, now: Moment) -> bool {
        thread_local! {
            static SEEN: Cell<Option<(u32, Moment)>> = const { Cell::new(None) };
        }
        let process = match SEEN.get() {
            Some((process, at)) if at <= now && now.since(at) < SHORTER_THAN_A_FORK => process,
            _ => {
                let process = process::id();
                SEEN.set(Some((process, now)));
                process
            }
        };
        self.0 == process
    }
}
