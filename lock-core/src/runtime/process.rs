//! Which process this is: a manager works only in the one that made it.
//!
//! A fork copies the memory, with every owner token and every lease. It shares what the system keeps: sockets, and what wakes the
//! manager's thread. The thread itself is not in the child. So a child that used an inherited manager would write between its
//! parent's commands, or wait for a reply that the parent reads. Every call is refused there, before it locks a mutex, which
//! another thread may have locked at the moment of the fork. A value that is dropped there is leaked, and not taken apart: closing
//! a connection of tokio's shuts the shared socket down and removes it from the shared poll.
//!
//! What belongs to the process and not to a manager is safe to inherit. Connection numbers are counted on, and never leave the
//! process (`store/in_flight.rs`). Pauses differ by the clock (`runtime/jitter.rs`). The table of hash tags and the scripts are
//! the same everywhere (`store/redis/topology/slots.rs`, `store/redis/scripts/mod.rs`). The manager of the process and those of
//! its tasks are refused like any other (`manager/default.rs`), and so are the leases of its bodies (`lock/reentry.rs`). Random
//! values that were drawn in advance belong to a manager (`store/owner_token.rs`).
//!
//! Two limits remain. A table or a script that another thread was initialising for the first time at the moment of the fork is
//! never finished in the child, and a mutex that another thread had locked is never unlocked. A child in a namespace of its own
//! may have its parent's process id.

use std::{cell::Cell, process, time::Duration};

use crate::runtime::clock::Moment;

/// The process that made something. No other process may use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OriginProcess(u32);

/// For how long a thread's check of its process stays valid. A fork takes longer, however little there is to copy (120 µs at the
/// least where this was measured). So a check that a child's thread inherited from its parent is older than this.
const SHORTER_THAN_A_FORK: Duration = Duration::from_micros(10);

impl OriginProcess {
    pub(crate) fn this_process() -> Self {
        Self(process::id())
    }

    /// Whether this is the process. Asks the system.
    pub(crate) fn is_here(self) -> bool {
        self == Self::this_process()
    }

    /// The same for frequent calls: asks the system once in ten microseconds, since that takes as long as a quarter of a
    /// hand-over. `now` is of [`Clock::Boot`](crate::runtime::clock::Clock), and was read by the caller.
    pub(crate) fn is_here_at(self, now: Moment) -> bool {
        thread_local! {
            static SEEN: Cell<Option<(OriginProcess, Moment)>> = const { Cell::new(None) };
        }
        let is_fresh = |at: Moment| at <= now && now.since(at) < SHORTER_THAN_A_FORK;
        let seen = SEEN.get().filter(|(_, at)| is_fresh(*at));
        let (process, _) = seen.unwrap_or_else(|| {
            let asked = (Self::this_process(), now);
            SEEN.set(Some(asked));
            asked
        });
        self == process
    }
}
