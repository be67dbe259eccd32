//! Handing a lock from task to task inside the process, without a message.
//!
//! It goes to the next task as long as it is certain to last, there is a fencing token for it, and other processes are not
//! kept waiting for too long. Else it goes back to the server, which gives it to whoever is next there.

use std::sync::{Arc, Weak};

use crate::{
    error::LeaseLost,
    fencing::FencingBlock,
    lock::{
        acquire::acquire_loop,
        held::{
            holding::Holding,
            lease_state::{LeaseState, OnLoss},
            server_lease::Tenure,
        },
        key_state::{Next, Seat, Slot, Turn},
        prefetch,
        registry::{Arbiter, Limits, forget},
        release::{PendingRelease, Reply},
        wait_queue::Waiter,
    },
    options::AutoRenew,
    runtime::clock::Moment,
    store::Contended,
    telemetry::{self, HandOff},
};

/// How a lock is handed on while other processes may wait for it.
#[derive(Debug)]
pub(crate) struct Batch {
    /// How often, and since when, since the server gave it to us or said that nobody else waits.
    handed: u32,
    since: Moment,
    contended: Contended,
    /// When the server last said so.
    news: Moment,
}

impl Batch {
    /// As long as the server has not said that nobody else waits, nobody else may be kept waiting without a bound.
    pub(crate) fn new(now: Moment) -> Self {
        Self {
            handed: 0,
            since: now,
            contended: Contended::OthersWaiting,
            news: now,
        }
    }

    /// Whether one more hand-over keeps other processes waiting for too long. While nobody else waits, old news end it.
    fn may_go_on(&self, now: Moment, limits: &Limits) -> bool {
        match self.contended {
            Contended::OthersWaiting => {
                self.handed < limits.handoffs && now.since(self.since) < limits.handoff_time
            }
            // Twice the time, since an answer takes some of it.
            Contended::NoneWaiting => now.since(self.news) < limits.handoff_time.saturating_mul(2),
        }
    }

    fn is_stale(&self, now: Moment, limits: &Limits) -> bool {
        now.since(self.news) >= limits.handoff_time
    }

    /// The bound counts from when the others are first heard of.
    fn hear(&mut self, contended: Contended, now: Moment) {
        if contended == Contended::NoneWaiting || self.contended == Contended::NoneWaiting {
            self.handed = 0;
            self.since = now;
        }
        self.contended = contended;
        self.news = now;
    }
}

/// A tenure that went from one task to the next.
struct Passed {
    lease: Arc<LeaseState>,
    waiter: Arc<Waiter>,
    /// Whether the server is to be asked for tokens and news.
    asks: bool,
}

/// Whether a tenure goes to the next task.
enum Pass {
    To(Passed),
    /// As soon as there are fencing tokens, which have been asked for.
    Soon,
    No,
}

impl Arbiter {
    /// For a lease that was let go: passes it to the next task, or says what else becomes of the key.
    pub(crate) fn next_after(
        self: &Arc<Self>,
        lease: &Arc<LeaseState>,
        lost: Option<LeaseLost>,
    ) -> Next {
        let mut leaving = lease.clone();
        // Bounded by the line: each round takes one waiter out of it.
        loop {
            let mut slots = self.lock();
            let tenure = leaving.tenure.clone();
            if slots.turn_of_lease(&leaving).is_none() {
                tenure.vacate();
                return Next::Nobody;
            }
            let pass = match (lost, slots.keys.get_mut(&tenure.key)) {
                (None, Some(slot)) => self.pass(slot, &leaving),
                _ => Pass::No,
            };
            let passed = match pass {
                Pass::To(passed) => passed,
                Pass::Soon => return Next::HasIt,
                Pass::No => {
                    tenure.vacate();
                    return slots.give_back(&tenure.key);
                }
            };
            drop(slots);
            // The lease that was let go has ended before this one began, and the renewal may have looked in between.
            self.engine.renewal.keep_planned(&tenure);
            if passed.asks {
                prefetch::ask(self, &tenure);
            }
            let holding = Holding::new(passed.lease.clone(), self.clone());
            match passed.waiter.settle(Ok(holding)) {
                Ok(()) => {
                    telemetry::handed_on(&tenure.key, HandOff::Local);
                    return Next::HasIt;
                }
                Err(untaken) => forget(untaken),
            }
            leaving = passed.lease;
        }
    }

    /// Hands the tenure to the head of the line, if that can be done without a message.
    fn pass(self: &Arc<Self>, slot: &mut Slot, leaving: &LeaseState) -> Pass {
        let Slot {
            line,
            seat: Seat::Held(turn),
            ..
        } = slot
        else {
            return Pass::No;
        };
        let tenure = &leaving.tenure;
        let now = self.engine.clock.now();
        let Some(waiter) = line.head() else {
            return Pass::No;
        };
        let alike = waiter.terms.ttl == tenure.ttl
            && waiter.terms.renew == AutoRenew::On
            && tenure.renew() == AutoRenew::On;
        let kept = leaving.kept_until().is_some_and(|until| now < until);
        if !alike
            || kept
            || !tenure.is_fresh(now)
            || !tenure.in_flight.is_on_one_connection()
            || !turn.batch.may_go_on(now, &self.limits)
        {
            return Pass::No;
        }
        let Some(fencing) = turn.take_fencing() else {
            // The answer that brings more is on its way: sooner there than the lock is at the server and back.
            turn.between = turn.asking;
            return if turn.asking { Pass::Soon } else { Pass::No };
        };
        let arbiter: Weak<dyn OnLoss> = Arc::<Self>::downgrade(self);
        let lease = Arc::new(LeaseState::new(
            tenure.clone(),
            fencing,
            waiter.terms,
            arbiter,
        ));
        if tenure.pass_to(&lease).is_err() {
            return Pass::No;
        }
        line.pop();
        turn.lease = lease.clone();
        turn.waiter = waiter.clone();
        turn.batch.handed += 1;
        let asks = self.should_ask(turn, now);
        turn.asking |= asks;
        Pass::To(Passed {
            lease,
            waiter,
            asks,
        })
    }

    /// Whether to ask the server for tokens and news. They are asked for ahead, so that nobody waits for the answer.
    fn should_ask(&self, turn: &Turn, now: Moment) -> bool {
        let short = turn.is_short_of_tokens();
        !turn.asking && (short || turn.batch.is_stale(now, &self.limits))
    }

    /// For a question ahead: takes the answer, and hands the lock on if a task waits for that.
    pub(crate) fn end_asking(
        self: &Arc<Self>,
        tenure: &Arc<Tenure>,
        answer: Option<(FencingBlock, Contended)>,
    ) {
        let mut slots = self.lock();
        let Some(turn) = slots.turn_of(tenure) else {
            return;
        };
        turn.asking = false;
        if let Some((tokens, contended)) = answer {
            turn.next_tokens = tokens;
            turn.batch.hear(contended, self.engine.clock.now());
        }
        let between = std::mem::take(&mut turn.between);
        let last = turn.lease.clone();
        drop(slots);
        if between {
            self.go_on_after(&last);
        }
    }

    /// Hands on a lock that stood between two tasks.
    fn go_on_after(self: &Arc<Self>, last: &Arc<LeaseState>) {
        match self.next_after(last, None) {
            Next::HasIt => {}
            next => {
                self.give_back(last, None, next, None);
                self.engine.store.flush();
            }
        }
    }

    /// Releases what no task of this process takes over; the caller has it leave, by the backend's `flush`.
    pub(crate) fn give_back(
        self: &Arc<Self>,
        lease: &LeaseState,
        lost: Option<LeaseLost>,
        next: Next,
        reply: Reply,
    ) {
        let tenure = &lease.tenure;
        self.engine.renewal.forget(tenure);
        // The release is started before the next seeker is, so that it reaches the connection first.
        PendingRelease::of(lease, lost).start(&self.engine, reply);
        if let Next::Seeks(signal) = next {
            acquire_loop::start(self, &tenure.key, signal);
        }
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
        batch.handed = 2;
        assert!(batch.may_go_on(at(0), &LIMITS));
        batch.handed = 3;
        assert!(!batch.may_go_on(at(0), &LIMITS));
        batch.hear(Contended::OthersWaiting, at(1));
        assert!(
            !batch.may_go_on(at(1), &LIMITS),
            "hearing of them again is no new beginning"
        );
    }

    #[test]
    fn while_nobody_waits_a_batch_goes_on_as_long_as_that_is_known() {
        let mut batch = Batch::new(at(0));
        batch.handed = 1000;
        batch.hear(Contended::NoneWaiting, at(10));
        batch.handed = 1000;
        assert!(batch.may_go_on(at(49), &LIMITS));
        assert!(!batch.may_go_on(at(50), &LIMITS));
        assert!(!batch.is_stale(at(29), &LIMITS) && batch.is_stale(at(30), &LIMITS));
        batch.hear(Contended::OthersWaiting, at(30));
        assert!(
            batch.may_go_on(at(49), &LIMITS),
            "the bound counts from when they are heard of"
        );
        assert!(!batch.may_go_on(at(50), &LIMITS));
    }
}
