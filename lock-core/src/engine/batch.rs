//! The rules for how long the tasks of a process hand a server lease over to each other while other processes wait for it.
//!
//! If another process is in the queue, or this one was, the lock returns to the server after one hand-over. If other
//! processes poll, it returns after 64. In both cases it returns after at most 20 ms. A release grants the lock to the
//! queue, but not to processes that poll, so this process then does not ask for it during one polling pause. As a result, a
//! process with many waiting tasks gets two turns for each turn of a process with a single task, and equal processes get
//! equally many turns. More hand-overs would be faster, but less fair.

use std::time::Duration;

use crate::{
    engine::{
        reply::Contended,
        transition::{BLOCK, BLOCK_ALONE, Limits},
    },
    moment::Moment,
};

/// The time for which a lock is handed over within the process while others wait, and the maximum age of a reply about
/// them.
const HANDOFF_TIME: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    /// The number of hand-overs since `since`.
    pub(crate) passed: u32,
    /// When the server granted the lease, or last said that no other process waits.
    pub(crate) since: Moment,
    /// The server's last report on other processes that wait; `None` before its first reply.
    pub(crate) contended: Option<Contended>,
    /// When the server last reported this, or granted the lease.
    pub(crate) replied_at: Moment,
    /// The number of hand-overs after which the server is asked again. It doubles each time, so a process that arrives soon
    /// after a grant is noticed soon, while a key that no other process wants costs few requests.
    pub(crate) asks_at: u32,
}

/// The next step of a lease whose holder has released it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    PassOn,
    /// Waits for a reply in flight, which will say whether other processes wait.
    AwaitReply,
    ReturnToServer,
}

impl Batch {
    /// Begins a batch. `is_queued` is `true` if this process was in the queue. Another process may then be about to wait,
    /// because the one that released the lock may return after a round trip.
    pub(crate) fn new(is_queued: bool, now: Moment) -> Self {
        Self {
            passed: 0,
            since: now,
            contended: is_queued.then_some(Contended::OthersQueued),
            replied_at: now,
            asks_at: 1,
        }
    }

    /// Decides what happens to the lease. `is_asking` is `true` if a request is in flight whose reply will say whether
    /// other processes wait. Such a reply counts for a bounded time.
    pub(crate) fn next(&self, is_asking: bool, now: Moment, limits: &Limits) -> Next {
        let is_within = |most| self.passed < most && now.since(self.since) < HANDOFF_TIME;
        let continues = match self.contended {
            Some(Contended::OthersQueued) => is_within(limits.handoffs_before_queue),
            None if is_asking && !is_within(limits.handoffs_before_queue) => {
                return Next::AwaitReply;
            }
            Some(Contended::OthersWaiting) | None => is_within(limits.handoffs_before_polls),
            // Twice the time, because some of it passes until the next reply arrives.
            Some(Contended::NoneWaiting) => now.since(self.replied_at) < HANDOFF_TIME * 2,
        };
        if continues {
            Next::PassOn
        } else {
            Next::ReturnToServer
        }
    }

    /// Returns the number of fencing tokens to prefetch.
    pub(crate) fn block(&self) -> u32 {
        match self.contended {
            Some(Contended::NoneWaiting) => BLOCK_ALONE,
            Some(Contended::OthersQueued | Contended::OthersWaiting) | None => BLOCK,
        }
    }

    /// Counts a hand-over. Returns `true` if the server must be asked again.
    pub(crate) fn pass(&mut self, now: Moment) -> bool {
        self.passed = self.passed.saturating_add(1);
        let is_due = self.passed >= self.asks_at;
        if is_due {
            self.asks_at = self.asks_at.saturating_mul(2);
        }
        is_due || now.since(self.replied_at) >= HANDOFF_TIME
    }

    /// Records the server's reply. A reply that no other process waits starts the bounds anew. `OthersQueued` persists
    /// until the lock has returned to the server, because a process that left the queue may be about to return.
    pub(crate) fn note(&mut self, contended: Contended, now: Moment) {
        self.replied_at = now;
        if self.contended == Some(Contended::OthersQueued) {
            return;
        }
        if contended == Contended::NoneWaiting {
            self.passed = 0;
            self.since = now;
        }
        self.contended = Some(contended);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(handoffs: u32) -> Limits {
        Limits {
            handoffs_before_queue: handoffs,
            handoffs_before_polls: handoffs,
            ..Limits::default()
        }
    }

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(0).after(Duration::from_millis(millis))
    }

    #[test]
    fn while_others_wait_a_batch_ends_by_count_and_by_time() {
        let limits = limits(3);
        for contended in [Contended::OthersQueued, Contended::OthersWaiting] {
            let mut batch = Batch::new(false, at(0));
            batch.note(contended, at(0));
            assert_eq!(batch.next(true, at(19), &limits), Next::PassOn);
            assert_eq!(batch.next(true, at(20), &limits), Next::ReturnToServer);
            batch.passed = 2;
            assert_eq!(batch.next(true, at(0), &limits), Next::PassOn);
            batch.passed = 3;
            assert_eq!(batch.next(true, at(0), &limits), Next::ReturnToServer);
            batch.note(contended, at(1));
            assert_eq!(
                batch.next(true, at(1), &limits),
                Next::ReturnToServer,
                "another report of them does not start a new batch"
            );
        }
    }

    #[test]
    fn a_lock_is_handed_over_once_if_others_queue_and_64_times_if_they_poll() {
        let mut queued = Batch::new(true, at(0));
        assert_eq!(queued.next(false, at(0), &Limits::default()), Next::PassOn);
        queued.pass(at(0));
        assert_eq!(
            queued.next(true, at(0), &Limits::default()),
            Next::ReturnToServer
        );
        queued.note(Contended::NoneWaiting, at(0));
        assert_eq!(
            queued.next(true, at(0), &Limits::default()),
            Next::ReturnToServer,
            "the last holder may be about to return"
        );
        let mut polled = Batch::new(false, at(0));
        polled.note(Contended::OthersWaiting, at(0));
        polled.passed = 63;
        assert_eq!(polled.next(false, at(0), &Limits::default()), Next::PassOn);
        polled.passed = 64;
        assert_eq!(
            polled.next(false, at(0), &Limits::default()),
            Next::ReturnToServer
        );
    }

    #[test]
    fn more_tokens_are_prefetched_while_no_other_process_waits() {
        let mut batch = Batch::new(false, at(0));
        assert_eq!(batch.block(), 64);
        batch.note(Contended::NoneWaiting, at(0));
        assert_eq!(batch.block(), 256);
        batch.note(Contended::OthersWaiting, at(0));
        assert_eq!(batch.block(), 64);
    }

    #[test]
    fn a_lock_is_handed_over_once_before_the_first_reply() {
        let mut batch = Batch::new(false, at(0));
        assert!(batch.pass(at(0)));
        assert_eq!(
            batch.next(true, at(0), &Limits::default()),
            Next::AwaitReply
        );
        assert_eq!(
            batch.next(false, at(0), &Limits::default()),
            Next::PassOn,
            "no reply is in flight"
        );
        batch.note(Contended::NoneWaiting, at(0));
        assert_eq!(batch.next(true, at(0), &Limits::default()), Next::PassOn);
    }

    #[test]
    fn a_batch_continues_as_long_as_no_other_process_is_known_to_wait() {
        let limits = limits(3);
        let mut batch = Batch::new(false, at(0));
        batch.passed = 1000;
        batch.note(Contended::NoneWaiting, at(10));
        assert_eq!(batch.passed, 0);
        batch.passed = 1000;
        assert_eq!(batch.next(true, at(49), &limits), Next::PassOn);
        assert_eq!(batch.next(true, at(50), &limits), Next::ReturnToServer);
        batch.note(Contended::OthersQueued, at(30));
        assert_eq!(
            batch.next(true, at(30), &limits),
            Next::ReturnToServer,
            "the bound counts from the last reply that no other process waits"
        );
    }

    #[test]
    fn the_server_is_asked_after_1_2_4_hand_overs_and_when_its_last_reply_is_old() {
        let mut batch = Batch::new(false, at(0));
        let mut asked = Vec::new();
        for turn in 1..=100 {
            if batch.pass(at(0)) {
                asked.push(turn);
                batch.note(Contended::NoneWaiting, at(0));
            }
        }
        assert_eq!(asked, [1, 3, 7, 15, 31, 63]);
        assert!(!batch.pass(at(19)) && batch.pass(at(20)));
    }
}
