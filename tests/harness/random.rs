//! Pseudo-random numbers that are the same for the same seed.

use std::time::Duration;

/// A generator of such numbers (`SplitMix64`).
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
}

impl Random {
    /// Makes a generator that depends on `seed` alone.
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Makes another generator from this one's state and `number`. Draws from one do not change the other.
    #[must_use]
    pub fn branch(&self, number: u64) -> Self {
        let mut branch = Self::new(self.state ^ number.wrapping_mul(0xd605_0fb1_9a2c_4b8d));
        branch.next();
        branch
    }

    /// Draws any `u64`.
    #[expect(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Draws a number below `end`, which is not zero.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Returns `true` in `share` of a hundred draws.
    pub fn percent(&mut self, share: u64) -> bool {
        self.below(100) < share
    }

    /// Draws a span of at least `least` and less than `end` milliseconds.
    pub fn millis(&mut self, least: u64, end: u64) -> Duration {
        Duration::from_millis(least + self.below(end - least))
    }

    /// Draws one of these, each with a probability in proportion to its weight.
    pub fn weighted<T: Copy>(&mut self, choices: &[(u64, T)]) -> T {
        let total = choices.iter().map(|(weight, _)| weight).sum();
        let mut left = self.below(total);
        for &(weight, choice) in choices {
            if left < weight {
                return choice;
            }
            left -= weight;
        }
        unreachable!("it is less than the sum of all weights")
    }
}
