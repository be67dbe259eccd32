//! Holding: the transitions of a server lease, from its first holder to its release or loss.
//!
//! Each task has a fencing token of its own. The lock passes from task to task without a message, as long as the lease is certain to
//! last, there is a token for the next task, and other processes do not wait for too long. Else it goes back to the server.

use std::time::Duration;

use crate::{
    error::LeaseLost,
    fencing::FencingToken,
    lock::key_state::{
        KeyState, Phase,
        action::{Action, POLL_WITHIN, ReleaseAction, TaskId, Transition},
        batch::Next,
        server_lease::{HolderStage, LocalHolder, RenewalPlan, ServerLease, validity},
        wait_queue::Waiter,
    },
    runtime::clock::Moment,
    store::{Failure, Prefetched, Renewed},
    telemetry::HandOff,
};

/// What becomes of a lease that its task released.
#[derive(Clone, Debug)]
pub(crate) enum AfterRelease<O> {
    /// The next task has it, or will as soon as there is a token for it.
    Passed,
    /// It goes back to the server. The task may wait for the reply.
    GiveBack(ReleaseAction<O>),
    /// It was not the task's any more.
    NotHeld,
}

impl<W, L, O> KeyState<W, L, O>
where
    L: Clone,
    O: Clone + PartialEq,
{
    /// The task begins to run under its lease: `max_hold` and `min_hold` count from here.
    pub(crate) fn begin(&mut self, id: TaskId, now: Moment, cx: &mut Transition<'_, W, L, O>) {
        if let Some(LocalHolder {
            stage: HolderStage::Taken { began, .. },
            ..
        }) = self.holder(id)
        {
            began.get_or_insert(now);
        }
        self.arm(cx);
    }

    /// The task releases.
    pub(crate) fn release(
        &mut self,
        id: TaskId,
        cx: &mut Transition<'_, W, L, O>,
    ) -> AfterRelease<O> {
        self.expire(cx);
        let after = match &mut self.phase {
            Phase::Held(held) => held.remove_holder(id).map(|holder| match holder.stage {
                HolderStage::Taken {
                    began: Some(began), ..
                } => holder.terms.min_hold.map(|min_hold| began.after(min_hold)),
                _ => None,
            }),
            Phase::Idle | Phase::Acquiring(_) => None,
        };
        let after = match after {
            Some(kept_until) => self.pass(kept_until, cx),
            None => AfterRelease::NotHeld,
        };
        self.go_on(None, cx);
        self.arm(cx);
        after
    }

    /// The lease of this task is lost, for a reason that this state does not see by itself.
    pub(crate) fn lose(&mut self, id: TaskId, reason: LeaseLost, cx: &mut Transition<'_, W, L, O>) {
        if self.holder(id).is_some() {
            self.end_lease(reason, cx);
        }
        self.go_on(None, cx);
        self.arm(cx);
    }

    /// The lease is lost, whichever task has it. Returns whether there is one.
    pub(crate) fn lose_any(&mut self, reason: LeaseLost, cx: &mut Transition<'_, W, L, O>) -> bool {
        let is_held = matches!(self.phase, Phase::Held(_));
        self.end_lease(reason, cx);
        self.go_on(None, cx);
        self.arm(cx);
        is_held
    }

    /// The server replied to a renewal. A late reply counts from when the renewal was sent.
    pub(crate) fn renewed(
        &mut self,
        owner: &O,
        sent: Moment,
        result: &Result<Renewed, Failure>,
        retry_in: Duration,
        cx: &mut Transition<'_, W, L, O>,
    ) {
        self.expire(cx);
        if let Some(held) = self.held_with(owner) {
            let is_awaited = held.renewal == RenewalPlan::InFlight;
            match result {
                Ok(Renewed::Extended) => {
                    if is_awaited {
                        held.renewal = RenewalPlan::At(cx.now);
                    }
                    let valid_until = validity(sent, held.ttl);
                    self.extend(valid_until, cx);
                }
                Ok(Renewed::NotOurs) => self.end_lease(LeaseLost::TakenAway, cx),
                // Retried until the lease ends.
                Err(_) if is_awaited => {
                    let pause = (cx.jitter)(retry_in);
                    held.renewal = RenewalPlan::At(cx.now.after(pause));
                }
                Err(_) => {}
            }
        }
        self.go_on(None, cx);
        self.arm(cx);
    }

    /// The server replied to a prefetch.
    pub(crate) fn prefetched(
        &mut self,
        owner: &O,
        result: &Result<Prefetched, Failure>,
        cx: &mut Transition<'_, W, L, O>,
    ) {
        self.expire(cx);
        if let Some(held) = self.held_with(owner)
            && let Some(sent) = held.prefetch.take()
        {
            match result {
                Ok(Prefetched::Tokens { tokens, contended }) => {
                    cx.actions.push(Action::Learn(tokens.last()));
                    held.next_tokens = *tokens;
                    held.batch.note(*contended, cx.now);
                    let valid_until = validity(sent, held.ttl);
                    self.extend(valid_until, cx);
                }
                Ok(Prefetched::NotOurs) => self.end_lease(LeaseLost::TakenAway, cx),
                // The lease goes back to the server when the tokens are used up.
                Err(_) => {}
            }
            if let Phase::Held(held) = &self.phase
                && held.holders.is_empty()
            {
                self.pass_or_release(None, cx);
            }
        }
        self.go_on(None, cx);
        self.arm(cx);
    }

    /// From now on the lease of this task is not renewed.
    pub(crate) fn stop_renewing(&mut self, id: TaskId, cx: &mut Transition<'_, W, L, O>) {
        if self.holder(id).is_some()
            && let Phase::Held(held) = &mut self.phase
        {
            held.renewal = RenewalPlan::Off;
        }
        self.arm(cx);
    }

    /// Ends what the clock has ended: the lease, the time of `max_hold`, a grant that its task did not take.
    pub(super) fn expire(&mut self, cx: &mut Transition<'_, W, L, O>) {
        let Phase::Held(held) = &self.phase else {
            return;
        };
        if cx.now < held.ends_at() {
            return;
        }
        let granted = self.granted_tasks();
        if !granted.is_empty() {
            for id in granted {
                if let Some(waiter) = self.withdraw_grant(id) {
                    self.queue.insert(id, waiter);
                }
            }
            // Where one task did not poll for so long, others may not, too: the process was stopped, or its runtime is blocked. All
            // are woken, and the lock goes back to the server until one of them polls.
            cx.actions
                .extend(self.queue.put_all_to_sleep().into_iter().map(Action::Wake));
            self.pass_or_release(None, cx);
        } else if cx.now >= held.valid_until {
            self.end_lease(LeaseLost::Expired, cx);
        } else {
            self.end_lease(LeaseLost::MaxHold, cx);
        }
    }

    /// The task takes its grant, if it has one. A task that polls late takes it as long as it lasts.
    pub(super) fn take_grant(
        &mut self,
        id: TaskId,
        lease: impl FnOnce(&ServerLease<W, L, O>, &LocalHolder<W, L>) -> L,
        cx: &mut Transition<'_, W, L, O>,
    ) -> Option<L> {
        let Phase::Held(held) = &mut self.phase else {
            return None;
        };
        let position = held.granted_position(id)?;
        if cx.now >= held.valid_until {
            return None;
        }
        let lease = lease(held, &held.holders[position]);
        let taken = HolderStage::Taken {
            lease: lease.clone(),
            began: None,
        };
        let stage = &mut held.holders[position].stage;
        if let HolderStage::Granted { waiter, .. } = std::mem::replace(stage, taken) {
            cx.actions.extend(waiter.waker.map(Action::Drop));
        }
        Some(lease)
    }

    /// Takes a grant back that its task has not taken.
    pub(super) fn withdraw_grant(&mut self, id: TaskId) -> Option<Box<Waiter<W>>> {
        let Phase::Held(held) = &mut self.phase else {
            return None;
        };
        let position = held.granted_position(id)?;
        match held.holders.swap_remove(position).stage {
            HolderStage::Granted { waiter, .. } => Some(waiter),
            HolderStage::Taken { .. } => None,
        }
    }

    pub(super) fn granted_tasks(&self) -> Vec<TaskId> {
        let Phase::Held(held) = &self.phase else {
            return Vec::new();
        };
        let granted = held.holders.iter().filter(|holder| holder.is_granted());
        granted.map(|holder| holder.id).collect()
    }

    /// Gives the server lease to a waiter, and wakes it.
    pub(super) fn give(
        &mut self,
        id: TaskId,
        fencing: FencingToken,
        cx: &mut Transition<'_, W, L, O>,
    ) {
        if let Phase::Held(held) = &mut self.phase
            && let Some(mut waiter) = self.queue.remove(id)
        {
            cx.actions.extend(waiter.waker.take().map(Action::Wake));
            held.holders.push(LocalHolder {
                id,
                terms: waiter.terms,
                fencing,
                stage: HolderStage::Granted {
                    until: cx.now.after(POLL_WITHIN),
                    waiter,
                },
            });
        }
    }

    /// For a lease that has no holder any more: it goes to the next waiter, or back to the server.
    pub(super) fn pass_or_release(
        &mut self,
        kept_until: Option<Moment>,
        cx: &mut Transition<'_, W, L, O>,
    ) {
        if let AfterRelease::GiveBack(release) = self.pass(kept_until, cx) {
            cx.actions.push(Action::Release(release));
        }
    }

    fn pass(
        &mut self,
        kept_until: Option<Moment>,
        cx: &mut Transition<'_, W, L, O>,
    ) -> AfterRelease<O> {
        let Phase::Held(held) = &mut self.phase else {
            return AfterRelease::NotHeld;
        };
        let is_kept = kept_until.is_some_and(|until| cx.now < until);
        let next = self
            .queue
            .head()
            .filter(|(_, waiter)| held.suits(&waiter.terms, cx));
        if let Some((id, _)) = next
            && !is_kept
        {
            let is_asking = held.prefetch.is_some();
            let fencing = match held.batch.next(is_asking, cx.now, &cx.limits) {
                Next::PassOn => held.take_token(),
                Next::AwaitReply => None,
                Next::GiveBack => return self.give_back(kept_until),
            };
            if let Some(fencing) = fencing {
                let asks = held.batch.pass(cx.now, &cx.limits) || held.next_tokens.left() == 0;
                // The last one of a batch needs no tokens behind it.
                let is_last = held.batch.next(true, cx.now, &cx.limits) == Next::GiveBack;
                if !is_asking && asks && !is_last {
                    cx.actions.push(held.prefetch(cx.now));
                }
                cx.actions.push(Action::HandedOn(HandOff::Local));
                self.give(id, fencing, cx);
                return AfterRelease::Passed;
            }
            if is_asking {
                // The reply, which brings more tokens, is sooner here than the lock is at the server and back.
                return AfterRelease::Passed;
            }
        }
        self.give_back(kept_until)
    }

    fn give_back(&mut self, kept_until: Option<Moment>) -> AfterRelease<O> {
        match self.take_held() {
            Some(held) => AfterRelease::GiveBack(held.into_release(kept_until)),
            None => AfterRelease::NotHeld,
        }
    }

    fn extend(&mut self, valid_until: Moment, cx: &mut Transition<'_, W, L, O>) {
        let Phase::Held(held) = &mut self.phase else {
            return;
        };
        held.valid_until = held.valid_until.max(valid_until);
        if matches!(held.renewal, RenewalPlan::At(_)) {
            held.plan_renewal(cx);
        }
        let valid_until = held.valid_until;
        cx.actions.extend(held.leases().map(|lease| Action::Extend {
            lease: lease.clone(),
            valid_until,
        }));
    }

    /// Ends the lease that is held. A task that has taken it keeps what is left on the server until its guard is dropped, and keeps no
    /// other task of this process from the lock.
    fn end_lease(&mut self, reason: LeaseLost, cx: &mut Transition<'_, W, L, O>) {
        let Some(mut held) = self.take_held() else {
            return;
        };
        let mut is_taken = false;
        for holder in std::mem::take(&mut held.holders) {
            match holder.stage {
                HolderStage::Taken { lease, .. } => {
                    is_taken = true;
                    cx.actions.push(Action::End { lease, reason });
                }
                // Its task does not know of it: it waits again, in its position.
                HolderStage::Granted { waiter, .. } => self.queue.insert(holder.id, waiter),
            }
        }
        if !is_taken {
            cx.actions.push(Action::Release(held.into_release(None)));
        }
    }

    /// Takes the server lease, if there is one: nothing is held or asked for afterwards.
    fn take_held(&mut self) -> Option<ServerLease<W, L, O>> {
        match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Held(held) => Some(held),
            other => {
                self.phase = other;
                None
            }
        }
    }

    fn holder(&mut self, id: TaskId) -> Option<&mut LocalHolder<W, L>> {
        match &mut self.phase {
            Phase::Held(held) => held.holders.iter_mut().find(|holder| holder.id == id),
            Phase::Idle | Phase::Acquiring(_) => None,
        }
    }

    fn held_with(&mut self, owner: &O) -> Option<&mut ServerLease<W, L, O>> {
        match &mut self.phase {
            Phase::Held(held) if held.owner == *owner => Some(held),
            _ => None,
        }
    }
}
