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
            server_lease::ServerLease,
        },
        key_state::{AfterRelease, KeyState, LocalHold, Phase},
        prefetch,
        registry::{Limits, Registry, forget},
        release::{PendingRelease, ReplyTo},
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
    checked_at: Moment,
}

impl Batch {
    /// As long as the server has not said that nobody else waits, nobody else may be kept waiting without a bound.
    pub(crate) fn new(now: Moment) -> Self {
        Self {
            handed: 0,
            since: now,
            contended: Contended::OthersWaiting,
            checked_at: now,
        }
    }

    /// Whether one more hand-over keeps other processes waiting for too long. While nobody else waits, old news end it.
    fn may_go_on(&self, now: Moment, limits: &Limits) -> bool {
        match self.contended {
            Contended::OthersWaiting => {
                self.handed < limits.handoffs && now.since(self.since) < limits.handoff_time
            }
            // Twice the time, since an answer takes some of it.
            Contended::NoneWaiting => {
                now.since(self.checked_at) < limits.handoff_time.saturating_mul(2)
            }
        }
    }

    fn is_stale(&self, now: Moment, limits: &Limits) -> bool {
        now.since(self.checked_at) >= limits.handoff_time
    }

    /// The bound counts from when the others are first heard of.
    fn note_contended(&mut self, contended: Contended, now: Moment) {
        if contended == Contended::NoneWaiting || self.contended == Contended::NoneWaiting {
            self.handed = 0;
            self.since = now;
        }
        self.contended = contended;
        self.checked_at = now;
    }
}

/// A server lease that went from one task to the next.
struct HandedOver {
    lease: Arc<LeaseState>,
    waiter: Arc<Waiter>,
    /// Whether the server is to be asked for tokens and news.
    prefetches: bool,
}

/// Whether a server lease goes to the next task.
enum HandOverTo {
    NextTask(HandedOver),
    /// As soon as there are fencing tokens, which have been asked for.
    NextTaskSoon,
    Server,
}

impl Registry {
    /// For a lease that was let go: passes it to the next task, or says what else becomes of the key.
    pub(crate) fn next_after(
        self: &Arc<Self>,
        lease: &Arc<LeaseState>,
        lost: Option<LeaseLost>,
    ) -> AfterRelease {
        let mut released = lease.clone();
        // Bounded by the line: each round takes one waiter out of it.
        loop {
            let mut states = self.lock();
            let server_lease = released.server_lease.clone();
            if states.hold_of_lease(&released).is_none() {
                server_lease.vacate();
                return AfterRelease::NoWaiter;
            }
            let pass = match (lost, states.keys.get_mut(&server_lease.key)) {
                (None, Some(state)) => self.pass(state, &released),
                _ => HandOverTo::Server,
            };
            let passed = match pass {
                HandOverTo::NextTask(passed) => passed,
                HandOverTo::NextTaskSoon => return AfterRelease::NextTask,
                HandOverTo::Server => {
                    server_lease.vacate();
                    return states.give_back(&server_lease.key);
                }
            };
            drop(states);
            // The lease that was let go has ended before this one began, and the renewal may have looked in between.
            self.context.renewal.keep_planned(&server_lease);
            if passed.prefetches {
                prefetch::start(self, &server_lease);
            }
            let holding = Holding::new(passed.lease.clone(), self.clone());
            match passed.waiter.settle(Ok(holding)) {
                Ok(()) => {
                    telemetry::handed_on(&server_lease.key, HandOff::Local);
                    return AfterRelease::NextTask;
                }
                Err(untaken) => forget(untaken),
            }
            released = passed.lease;
        }
    }

    /// Hands the server lease to the head of the line, if that can be done without a message.
    fn pass(self: &Arc<Self>, state: &mut KeyState, released: &LeaseState) -> HandOverTo {
        let KeyState {
            queue,
            phase: Phase::Held(hold),
            ..
        } = state
        else {
            return HandOverTo::Server;
        };
        let server_lease = &released.server_lease;
        let now = self.context.clock.now();
        let Some(waiter) = queue.head() else {
            return HandOverTo::Server;
        };
        let alike = waiter.terms.ttl == server_lease.ttl
            && waiter.terms.renew == AutoRenew::On
            && server_lease.renew() == AutoRenew::On;
        let kept = released.kept_until().is_some_and(|until| now < until);
        if !alike
            || kept
            || !server_lease.is_fresh(now)
            || !server_lease.in_flight.is_on_one_connection()
            || !hold.batch.may_go_on(now, &self.limits)
        {
            return HandOverTo::Server;
        }
        let Some(fencing) = hold.take_fencing() else {
            // The answer that brings more is on its way: sooner there than the lock is at the server and back.
            hold.between_tasks = hold.prefetching;
            return if hold.prefetching {
                HandOverTo::NextTaskSoon
            } else {
                HandOverTo::Server
            };
        };
        let registry: Weak<dyn OnLoss> = Arc::<Self>::downgrade(self);
        let lease = Arc::new(LeaseState::new(
            server_lease.clone(),
            fencing,
            waiter.terms,
            registry,
        ));
        if server_lease.pass_to(&lease).is_err() {
            return HandOverTo::Server;
        }
        queue.pop();
        hold.lease = lease.clone();
        hold.waiter = waiter.clone();
        hold.batch.handed += 1;
        let prefetches = self.should_prefetch(hold, now);
        hold.prefetching |= prefetches;
        HandOverTo::NextTask(HandedOver {
            lease,
            waiter,
            prefetches,
        })
    }

    /// Whether to ask the server for tokens and news. They are asked for ahead, so that nobody waits for the answer.
    fn should_prefetch(&self, hold: &LocalHold, now: Moment) -> bool {
        let short = hold.is_short_of_tokens();
        !hold.prefetching && (short || hold.batch.is_stale(now, &self.limits))
    }

    /// For a question ahead: takes the answer, and hands the lock on if a task waits for that.
    pub(crate) fn end_prefetch(
        self: &Arc<Self>,
        server_lease: &Arc<ServerLease>,
        answer: Option<(FencingBlock, Contended)>,
    ) {
        let mut states = self.lock();
        let Some(hold) = states.hold_of(server_lease) else {
            return;
        };
        hold.prefetching = false;
        if let Some((tokens, contended)) = answer {
            hold.next_tokens = tokens;
            hold.batch
                .note_contended(contended, self.context.clock.now());
        }
        let between_tasks = std::mem::take(&mut hold.between_tasks);
        let last = hold.lease.clone();
        drop(states);
        if between_tasks {
            self.go_on_after(&last);
        }
    }

    /// Hands on a lock that stood between two tasks.
    fn go_on_after(self: &Arc<Self>, last: &Arc<LeaseState>) {
        match self.next_after(last, None) {
            AfterRelease::NextTask => {}
            next => {
                self.give_back(last, None, next, None);
                self.context.store.flush();
            }
        }
    }

    /// Releases what no task of this process takes over; the caller has it leave, by the backend's `flush`.
    pub(crate) fn give_back(
        self: &Arc<Self>,
        lease: &LeaseState,
        lost: Option<LeaseLost>,
        next: AfterRelease,
        reply: ReplyTo,
    ) {
        let server_lease = &lease.server_lease;
        self.context.renewal.forget(server_lease);
        // The release is started before the next acquire loop is, so that it reaches the connection first.
        PendingRelease::of(lease, lost).start(&self.context, reply);
        if let AfterRelease::AcquireAgain(signal) = next {
            acquire_loop::start(self, &server_lease.key, signal);
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
        batch.note_contended(Contended::OthersWaiting, at(1));
        assert!(
            !batch.may_go_on(at(1), &LIMITS),
            "hearing of them again is no new beginning"
        );
    }

    #[test]
    fn while_nobody_waits_a_batch_goes_on_as_long_as_that_is_known() {
        let mut batch = Batch::new(at(0));
        batch.handed = 1000;
        batch.note_contended(Contended::NoneWaiting, at(10));
        batch.handed = 1000;
        assert!(batch.may_go_on(at(49), &LIMITS));
        assert!(!batch.may_go_on(at(50), &LIMITS));
        assert!(!batch.is_stale(at(29), &LIMITS) && batch.is_stale(at(30), &LIMITS));
        batch.note_contended(Contended::OthersWaiting, at(30));
        assert!(
            batch.may_go_on(at(49), &LIMITS),
            "the bound counts from when they are heard of"
        );
        assert!(!batch.may_go_on(at(50), &LIMITS));
    }
}
