//! The numbers that a server takes from its counter and its clock.

use crate::{fencing::FencingBlock, runtime::clock::wall_clock};

#[derive(Debug, Default)]
pub(super) struct MemoryCounters {
    last_token: u64,
    last_place: u64,
}

impl MemoryCounters {
    /// Grows with the wall clock, so that it also grows from one run of the program to the next. So a database that outlives the
    /// process accepts the tokens of the next run. As on a server, no more tokens are given out than the clock is ahead.
    pub(super) fn take_fencing(&mut self, known: u64, count: u32) -> FencingBlock {
        let since_epoch = wall_clock();
        let micros = u64::try_from(since_epoch.as_micros()).unwrap_or(0);
        let counter = self.last_token.max(known);
        let ahead = u32::try_from(micros.saturating_sub(counter)).unwrap_or(u32::MAX);
        let count = count.min(ahead).max(1);
        self.last_token = micros.max(counter + u64::from(count));
        FencingBlock::new(self.last_token + 1 - u64::from(count), count)
    }

    /// A place in a queue, the cut of a phase, or the stamp of a shared grant: what a server takes from its time. Never the same
    /// twice, for whatever key.
    pub(super) fn next_place(&mut self) -> u64 {
        self.last_place += 1;
        self.last_place
    }

    pub(super) fn last_token(&self) -> u64 {
        self.last_token
    }

    pub(super) fn last_place(&self) -> u64 {
        self.last_place
    }
}
