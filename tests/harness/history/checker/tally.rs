//! The result of a check.

use std::{collections::BTreeMap, time::Duration};

use super::Invariant;

/// The number of violations of each invariant that are kept as text; the others are only counted.
const SHOWN: usize = 5;

/// The violations that were found, and some measurements.
#[derive(Debug, Default)]
pub struct Tally {
    violations: BTreeMap<Invariant, u64>,
    shown: BTreeMap<Invariant, Vec<String>>,
    /// The number of grants.
    pub acquisitions: u64,
    /// The number of attempts that ended without a lock.
    pub failures: u64,
    longest_gap: Duration,
    longest_gap_in_faults: Duration,
}

impl Tally {
    /// Returns the number of violations of each invariant that does not hold.
    pub fn violations(&self) -> &BTreeMap<Invariant, u64> {
        &self.violations
    }

    /// Returns the first violations of an invariant.
    pub fn shown(&self, invariant: Invariant) -> &[String] {
        self.shown.get(&invariant).map_or(&[], Vec::as_slice)
    }

    /// Returns the longest time for which a requested key was not granted although nothing was broken.
    pub fn longest_gap(&self) -> Duration {
        self.longest_gap
    }

    /// Returns the longest time for which a requested key was not granted while something was broken.
    pub fn longest_gap_in_faults(&self) -> Duration {
        self.longest_gap_in_faults
    }

    pub(super) fn report(&mut self, invariant: Invariant, text: String) {
        *self.violations.entry(invariant).or_default() += 1;
        let shown = self.shown.entry(invariant).or_default();
        if shown.len() < SHOWN {
            shown.push(text);
        }
    }

    pub(super) fn gap(&mut self, length: Duration, is_broken: bool) {
        let longest = if is_broken {
            &mut self.longest_gap_in_faults
        } else {
            &mut self.longest_gap
        };
        *longest = length.max(*longest);
    }
}
