//! The fencing clock of the locks inside one process.

use std::time::Duration;

use crate::fencing::{FencingBlock, in_tokens};

/// Its tokens are on the scale of a server's, and as exact as the wall clock. They grow from one run of the program
/// to the next. So a database that outlives the process accepts the tokens of the next run.
#[derive(Clone, Debug)]
pub(crate) struct MemoryClock {
    wall_clock: fn() -> Duration,
    last: u64,
}

impl MemoryClock {
    pub(crate) fn new(wall_clock: fn() -> Duration) -> Self {
        Self {
            wall_clock,
            last: 0,
        }
    }

    /// Takes tokens that are larger than all before, and than those that the process knows.
    pub(crate) fn take(&mut self, known: u64, count: u32) -> FencingBlock {
        let first = in_tokens((self.wall_clock)()).max(self.last.max(known) + 1);
        let block = FencingBlock::new(first, count);
        self.last = block.last().into();
        block
    }

    /// The last token that was taken.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }
}
