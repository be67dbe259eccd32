//! The numbers that a server takes from its clocks.

use crate::{
    fencing::{FencingBlock, in_tokens},
    runtime::clock::wall_clock,
};

#[derive(Debug, Default)]
pub(super) struct MemoryCounters {
    last_token: u64,
    last_place: u64,
}

impl MemoryCounters {
    /// Takes tokens on the scale of a server's fencing clock, and as exact as the wall clock. They grow from one run of the program to
    /// the next. So a database that outlives the process accepts the tokens of the next run.
    pub(super) fn take_fencing(&mut self, known: u64, count: u32) -> FencingBlock {
        let first = in_tokens(wall_clock()).max(self.last_token.max(known) + 1);
        let block = FencingBlock::new(first, count);
        self.last_token = block.last().into();
        block
    }

    /// A place in a queue, or the cut of a phase: what a server takes from its time. Never the same twice, for whatever key.
    pub(super) fn next_place(&mut self) -> u64 {
        self.last_place += 1;
        self.last_place
    }

    pub(super) fn last_token(&self) -> u64 {
        self.last_token
    }
}
