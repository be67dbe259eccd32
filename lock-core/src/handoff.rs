//! Handing a lock from task to task inside the process, without a message.
//!
//! It goes to the next task as long as it is certain to last, there is a fencing token for it, and other processes are not
//! kept waiting for too long. Else it goes back to the server, which gives it to whoever is next there.

use std::sync::{Arc, Weak};

use crate::{
    ahead,
    arbiter::{Arbiter, forget},
    backend::Others,
    clock::Moment,
    holding::Holding,
    lease::{LeaseLost, LeaseState, OnLoss},
    line::Waiter,
    options::Renew,
    slot::{Next, Seat, Slot, Turn},
    tenure::Tenure,
    token::TokenBlock,
};

/// A tenure that went from one task to the next.
struct Passed {
    lease: Arc<LeaseState>,
    waiter: Arc<Waiter>,
    /// Whether the server is to be asked for tokens and news.
    asks: bool,
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
            let passed = match (lost, slots.keys.get_mut(&tenure.key)) {
                (None, Some(slot)) => self.pass(slot, &leaving),
                _ => None,
            };
            let Some(passed) = passed else {
                tenure.vacate();
                return slots.give_back(&tenure.key);
            };
            drop(slots);
            if passed.asks {
                ahead::ask(self, &tenure);
            }
            let holding = Holding::new(passed.lease.clone(), self.clone());
            match passed.waiter.settle(Ok(holding)) {
                Ok(()) => return Next::HasIt,
                Err(untaken) => forget(untaken),
            }
            leaving = passed.lease;
        }
    }

    /// Hands the tenure to the head of the line, if that can be done without a message.
    fn pass(self: &Arc<Self>, slot: &mut Slot, leaving: &LeaseState) -> Option<Passed> {
        let Slot {
            line,
            seat: Seat::Held(turn),
            ..
        } = slot
        else {
            return None;
        };
        let tenure = &leaving.tenure;
        let now = self.engine.clock.now();
        let waiter = line.head()?;
        let alike = waiter.terms.ttl == tenure.ttl
            && waiter.terms.renew == Renew::On
            && tenure.renew == Renew::On;
        let kept = leaving.kept_until().is_some_and(|until| now < until);
        if !alike
            || kept
            || !tenure.is_fresh(now)
            || !tenure.trail.is_single()
            || !self.may_keep(turn, now)
        {
            return None;
        }
        let fencing = turn.take_token()?;
        let arbiter: Weak<dyn OnLoss> = Arc::<Self>::downgrade(self);
        let lease = Arc::new(LeaseState::new(
            tenure.clone(),
            fencing,
            waiter.terms,
            arbiter,
        ));
        tenure.pass_to(&lease).ok()?;
        line.pop();
        turn.lease = lease.clone();
        turn.waiter = waiter.clone();
        turn.handed += 1;
        let asks = self.should_ask(turn, now);
        turn.asking |= asks;
        Some(Passed {
            lease,
            waiter,
            asks,
        })
    }

    /// Whether other processes are not kept waiting for too long. While nobody else waits, there is no bound but news.
    fn may_keep(&self, turn: &Turn, now: Moment) -> bool {
        let limits = &self.limits;
        match turn.others {
            Others::Wait => {
                turn.handed < limits.handoffs && now.since(turn.since) < limits.handoff_time
            }
            // Twice the time, since an answer takes some of it.
            Others::DoNot => now.since(turn.news) < limits.handoff_time.saturating_mul(2),
        }
    }

    /// Whether to ask the server for tokens and news. They are asked for ahead, so that nobody waits for the answer.
    fn should_ask(&self, turn: &Turn, now: Moment) -> bool {
        let short = turn.is_short_of_tokens();
        let stale = now.since(turn.news) >= self.limits.handoff_time;
        !turn.asking && (short || stale)
    }

    /// For a question ahead: takes the answer.
    pub(crate) fn end_asking(&self, tenure: &Arc<Tenure>, answer: Option<(TokenBlock, Others)>) {
        let mut slots = self.lock();
        let Some(turn) = slots.turn_of(tenure) else {
            return;
        };
        turn.asking = false;
        let Some((tokens, others)) = answer else {
            return;
        };
        turn.next_tokens = tokens;
        turn.news = self.engine.clock.now();
        if others == Others::DoNot || turn.others == Others::DoNot {
            turn.handed = 0;
            turn.since = turn.news;
        }
        turn.others = others;
    }
}
