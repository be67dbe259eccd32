//! The random numbers of a simulation, which all depend on its seed.

use lock_tests::Random;

#[derive(Clone, Debug)]
pub(crate) struct Chance(Random);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Random::new(seed))
    }

    /// Makes a generator whose numbers do not depend on later draws from this one.
    pub(crate) fn branch(&mut self) -> Self {
        Self::new(self.next())
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.next()
    }

    /// Draws a number below `bound`, which is not zero.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    /// Draws a number from `least` to `most`, both included.
    pub(crate) fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    pub(crate) fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).expect("an index")
    }

    pub(crate) fn pick<T: Copy>(&mut self, among: &[T]) -> T {
        among[self.index(among.len())]
    }

    /// Returns `true` in `often` of a thousand draws.
    pub(crate) fn permille(&mut self, often: u64) -> bool {
        self.below(1000) < often
    }
}
