//! The counts and measurements of a running check.

use std::{collections::BTreeMap, time::Duration};

use super::Invariant;
use crate::history::Event;

/// The number of offences of each kind that are kept as text; the others are only counted.
const SHOWN: usize = 5;

/// The result so far.
#[derive(Debug, Default)]
pub struct Tally {
    offences: BTreeMap<Invariant, u64>,
    shown: BTreeMap<Invariant, Vec<String>>,
    acquisitions: u64,
    // The acquisitions that followed a holder in the same process.
    local: u64,
    /// The attempts that ended without a lock.
    pub failures: u64,
    /// The leases that were lost.
    pub losses: u64,
    // How many waits were below each power of two, in microseconds.
    waits: [u64; 32],
    worst_wait: Duration,
    worst_wait_for: String,
    longest_gap: Duration,
    longest_gap_in_faults: Duration,
}

impl Tally {
    /// Returns how often each invariant was offended; invariants that hold are left out.
    pub fn offences(&self) -> &BTreeMap<Invariant, u64> {
        &self.offences
    }

    /// Returns the first offences of an invariant as text.
    pub fn shown(&self, invariant: Invariant) -> &[String] {
        self.shown.get(&invariant).map_or(&[], Vec::as_slice)
    }

    /// Returns how often a lock was acquired.
    pub fn acquisitions(&self) -> u64 {
        self.acquisitions
    }

    /// Returns how many of the acquisitions followed a holder in the same process.
    pub fn local(&self) -> u64 {
        self.local
    }

    /// Returns the longest wait for a lock that was acquired.
    pub fn worst_wait(&self) -> Duration {
        self.worst_wait
    }

    /// Returns the attempt that had the longest wait, and when the wait ended.
    pub fn worst_wait_for(&self) -> &str {
        &self.worst_wait_for
    }

    /// Returns a time within which 99 of 100 waits ended; it may be up to twice the exact value.
    pub fn p99_wait(&self) -> Duration {
        let mut below = 0;
        for (power, count) in self.waits.iter().enumerate() {
            below += count;
            if below * 100 >= self.acquisitions * 99 {
                return Duration::from_micros(1 << power);
            }
        }
        self.worst_wait
    }

    /// Returns the longest time for which a wanted key was not granted, with nothing broken in it.
    pub fn longest_gap(&self) -> Duration {
        self.longest_gap
    }

    /// Returns the longest time for which a wanted key was not granted, with something broken in it.
    pub fn longest_gap_in_faults(&self) -> Duration {
        self.longest_gap_in_faults
    }

    pub(super) fn offend(&mut self, invariant: Invariant, text: String) {
        *self.offences.entry(invariant).or_default() += 1;
        let shown = self.shown.entry(invariant).or_default();
        if shown.len() < SHOWN {
            shown.push(text);
        }
    }

    pub(super) fn granted(&mut self, is_local: bool) {
        self.acquisitions += 1;
        self.local += u64::from(is_local);
    }

    pub(super) fn waited(&mut self, wait: Duration, event: &Event) {
        if wait > self.worst_wait {
            self.worst_wait = wait;
            self.worst_wait_for = format!("{} until {}", event.key, event.at);
        }
        let micros = u64::try_from(wait.as_micros()).expect("a wait of a test");
        let power = usize::try_from(u64::BITS - micros.leading_zeros()).expect("less than 65");
        self.waits[power.min(self.waits.len() - 1)] += 1;
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
