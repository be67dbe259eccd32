//! Checks that readers and writers of a key take turns, so that neither waits for more phases of the other than necessary.
//!
//! Phases are counted for each attempt. An attempt enters the server's queue shortly after its call, and leaves it shortly before
//! it notices, so the bounds have an allowance. An attempt that starves exceeds any bound.

use std::collections::BTreeMap;

use lock_tests::Mode;

use crate::{network::Nanos, scheduler::ProcessId};

/// The number of phases that may pass before an attempt is in the queue, and after it was granted.
const UNCOUNTED: u64 = 2;

/// The number of tasks that hold the lock in one exclusive phase: while others wait, it is handed over once.
const IN_A_PHASE: u64 = 2;

/// The observed phases of a key.
#[derive(Default)]
pub(crate) struct Phases {
    /// The time at which each shared phase was first observed, by its fencing token.
    shared: BTreeMap<u64, Nanos>,
    exclusive_grants: u64,
    /// The exclusive attempts that ended without a grant, as far as their tasks know. The server may have granted them.
    exclusive_failures: u64,
}

/// An attempt that has no reply yet.
pub(crate) struct Waiting {
    pub(crate) process: ProcessId,
    pub(crate) mode: Mode,
    pub(crate) called: Nanos,
    shared: usize,
    exclusive_grants: u64,
    exclusive_failures: u64,
}

impl Phases {
    pub(crate) fn wait(&self, process: ProcessId, mode: Mode, called: Nanos) -> Waiting {
        Waiting {
            process,
            mode,
            called,
            shared: self.shared.len(),
            exclusive_grants: self.exclusive_grants,
            exclusive_failures: self.exclusive_failures,
        }
    }

    pub(crate) fn granted(&mut self, mode: Mode, token: u64, now: Nanos) {
        match mode {
            Mode::Exclusive => self.exclusive_grants += 1,
            Mode::Shared => {
                self.shared.entry(token).or_insert(now);
            }
            Mode::Permits(_) => {}
        }
    }

    pub(crate) fn failed(&mut self, mode: Mode) {
        if mode == Mode::Exclusive {
            self.exclusive_failures += 1;
        }
    }

    /// Returns what is wrong with a shared grant in the phase with this `token`, for an attempt that was called at `called`.
    ///
    /// The grant is wrong if an exclusive attempt had waited for so long that the phase must have been closed to newcomers.
    pub(crate) fn look_at_late_entry<'a>(
        &self,
        token: u64,
        called: Nanos,
        mut waiting: impl Iterator<Item = &'a Waiting>,
        closed_within: Nanos,
    ) -> Option<String> {
        let begun = *self.shared.get(&token)?;
        let passed_over = |other: &&Waiting| {
            other.mode == Mode::Exclusive
                && begun <= other.called
                && other.called + closed_within < called
        };
        let first = waiting.find(passed_over)?;
        Some(format!(
            "enters the shared phase {token}, although p{} has waited for an exclusive lock for {} ms",
            first.process,
            (called - first.called) / 1_000_000
        ))
    }

    /// Returns what is wrong with the number of phases that passed while an attempt waited.
    pub(crate) fn look_at_wait(&self, attempt: &Waiting) -> Option<String> {
        let shared = u64::try_from(self.shared.len() - attempt.shared).expect("a few");
        let exclusive = self.exclusive_grants - attempt.exclusive_grants;
        let unseen = self.exclusive_failures - attempt.exclusive_failures;
        match attempt.mode {
            // There is an exclusive phase between two shared phases.
            Mode::Exclusive if shared > exclusive + unseen + 1 + UNCOUNTED => Some(format!(
                "has waited for an exclusive lock during {shared} shared phases and {exclusive} exclusive grants"
            )),
            // The rest of the current phase, and one more.
            Mode::Shared if exclusive > 2 * IN_A_PHASE + UNCOUNTED => Some(format!(
                "has waited for a shared lock during {exclusive} exclusive grants"
            )),
            _ => None,
        }
    }
}
