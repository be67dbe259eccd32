//! How long a server lease may be passed on inside the process while other processes wait for it.

use crate::{lock::key_state::action::Limits, runtime::clock::Moment, store::Contended};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    /// How often it was passed on, and since when, since the server granted it or said that no other process waits.
    pub(super) passed: u32,
    pub(super) since: Moment,
    pub(super) contended: Contended,
    /// When the server last said so.
    pub(super) told_at: Moment,
}

impl Batch {
    /// Until the server says that no other process waits, one may.
    pub(super) fn new(now: Moment) -> Self {
        Self {
            passed: 0,
            since: now,
            contended: Contended::OthersWaiting,
            told_at: now,
        }
    }

    /// Whether it may be passed on once more. What the server said counts for a bounded time.
    pub(super) fn may_go_on(&self, now: Moment, limits: &Limits) -> bool {
        match self.contended {
            Contended::OthersWaiting => {
                self.passed < limits.handoffs && now.since(self.since) < limits.handoff_time
            }
            // Twice the time, since a reply takes some of it.
            Contended::NoneWaiting => {
                now.since(self.told_at) < limits.handoff_time.saturating_mul(2)
            }
        }
    }

    pub(super) fn is_stale(&self, now: Moment, limits: &Limits) -> bool {
        now.since(self.told_at) >= limits.handoff_time
    }

    /// The bound counts from when other processes were first known to wait.
    pub(super) fn note(&mut self, contended: Contended, now: Moment) {
        if contended == Contended::NoneWaiting || self.contended == Contended::NoneWaiting {
            self.passed = 0;
            self.since = now;
        }
        self.contended = contended;
        self.told_at = now;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LIMITS: Limits = Limits {
        held: 1,
        waiting: 1,
        handoffs: 3,
        handoff_time: Duration::from_millis(20),
    };

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(0).after(Duration::from_millis(millis))
    }

    #[test]
    fn while_others_wait_a_batch_ends_by_count_and_by_time() {
        let mut batch = Batch::new(at(0));
        assert!(batch.may_go_on(at(19), &LIMITS));
        assert!(!batch.may_go_on(at(20), &LIMITS));
        batch.passed = 2;
        assert!(batch.may_go_on(at(0), &LIMITS));
        batch.passed = 3;
        assert!(!batch.may_go_on(at(0), &LIMITS));
        batch.note(Contended::OthersWaiting, at(1));
        assert!(
            !batch.may_go_on(at(1), &LIMITS),
            "hearing of them again is no new beginning"
        );
    }

    #[test]
    fn while_no_other_process_waits_a_batch_goes_on_as_long_as_that_is_known() {
        let mut batch = Batch::new(at(0));
        batch.passed = 1000;
        batch.note(Contended::NoneWaiting, at(10));
        batch.passed = 1000;
        assert!(batch.may_go_on(at(49), &LIMITS));
        assert!(!batch.may_go_on(at(50), &LIMITS));
        assert!(!batch.is_stale(at(29), &LIMITS) && batch.is_stale(at(30), &LIMITS));
        batch.note(Contended::OthersWaiting, at(30));
        assert!(
            batch.may_go_on(at(49), &LIMITS),
            "the bound counts from when they are heard of"
        );
        assert!(!batch.may_go_on(at(50), &LIMITS));
    }
}
