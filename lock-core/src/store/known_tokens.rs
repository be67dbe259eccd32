//! The largest fencing token that a manager knows of each fencing clock.
//!
//! Clocks of several nodes differ. One number for all of them would be ahead of every token of the slower node. Each acquire there
//! would have to move the clock.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::fencing::FencingToken;

/// Names the fencing clock of a key: in a cluster the slot of the key, else 0.
pub(crate) type ClockIndex = u16;

#[derive(Debug)]
pub(crate) struct KnownTokens(Box<[AtomicU64]>);

impl KnownTokens {
    pub(crate) fn of_clocks(count: u16) -> Self {
        Self((0..count).map(|_| AtomicU64::new(0)).collect())
    }

    /// The largest known token of this clock; 0 if none is known.
    pub(crate) fn of(&self, clock: ClockIndex) -> u64 {
        let known = self.0.get(usize::from(clock));
        known.map_or(0, |known| known.load(Ordering::Acquire))
    }

    pub(crate) fn learn(&self, clock: ClockIndex, token: FencingToken) {
        if let Some(known) = self.0.get(usize::from(clock)) {
            known.fetch_max(token.into(), Ordering::AcqRel);
        }
    }
}
