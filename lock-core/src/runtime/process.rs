//! Which process this is: a manager works only in the one that made it.
//!
//! A fork copies the memory, with every owner token and every lease, and shares what the system keeps: sockets, and what wakes
//! the manager's thread. The thread itself is not in the child. So a child that used what it inherited would write between its
//! parent's commands, or wait for an answer that the parent reads. Every call is refused there, before it takes a lock of
//! memory, which another thread may have held at the moment of the fork. What is dropped there is let be, and not taken apart:
//! closing a connection of tokio's shuts the shared socket down and takes it from the shared poll.
//!
//! What belongs to the process and not to a manager is safe to inherit. Connections are counted on, and the numbers never leave
//! the process (`trail.rs`). Pauses differ by the clock (`engine.rs`). The table of tags and the scripts are the same
//! everywhere (`slots.rs`, `lua.rs`). The manager of the process and those of its tasks are refused like any other
//! (`manager/default.rs`), and so are the leases of its bodies (`reentry.rs`). Random values ahead are kept by a manager
//! (`token.rs`).
//!
//! What cannot be mended: a table or a script that another thread was making at the moment of the fork, for the first time in
//! the process, is never finished in the child; nor is a lock of memory let go that another thread had. And a child in a
//! namespace of its own may have its parent's process id.

use std::{cell::Cell, process, time::Duration};

use crate::runtime::clock::Moment;

/// The process that made something, which alone may use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OriginProcess(u32);

/// What a thread knows of its process stays true for so long. A fork takes longer, whatever there is to copy (120 µs at the least
/// where this was measured), so what the thread of a child has from its parent is older than this.
const SHORTER_THAN_A_FORK: Duration = Duration::from_micros(10);

impl OriginProcess {
    pub(crate) fn this_process() -> Self {
        Self(process::id())
    }

    /// Whether this is the process. Asks the system.
    pub(crate) fn is_here(self) -> bool {
        self == Self::this_process()
    }

    /// The same for what is called all the time: asks the system once in ten microseconds, since that takes as long as a quarter
    /// of a hand-over. `now` is of [`Clock::Boot`](crate::runtime::clock::Clock), and was read by the caller.
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
