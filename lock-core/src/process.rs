//! Which process this is. A fork copies what a manager has in memory, and shares its connections; but its thread, its locks and
//! the names by which servers know it stay the parent's.

use std::{cell::Cell, process, time::Duration};

use crate::clock::Moment;

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
    /// of a hand-over. `now` is of [`Clock::Boot`](crate::clock::Clock), and was read by the caller.
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
