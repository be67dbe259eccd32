//! The transitions that grant the lock to a waiting task, or refuse it.

use std::time::Duration;

use crate::{
    engine::{
        key_state::KeyState,
        local_holders::{HolderStage, LocalHolder},
        request::AcquireRequest,
        server_lease::ServerLease,
        terms::HoldBounds,
        transition::{Action, POLL_WITHIN, Refusal, TaskId, Transition},
        wait_queue::LocalWaiter,
    },
    fencing::FencingToken,
    mode::Mode,
    moment::Moment,
};

impl<W, L, O> KeyState<W, L, O>
where
    L: Clone,
    O: Clone + PartialEq,
{
    /// Accepts the grant of a task, if it has one. A task that polls late can accept its grant as long as the lease is
    /// valid.
    pub(super) fn accept_grant(
        &mut self,
        id: TaskId,
        cx: &mut Transition<'_, W, L, O>,
    ) -> Option<L> {
        let at = self.granting_lease(id)?;
        let held = &mut self.leases[at];
        if cx.now >= held.valid_until {
            return None;
        }
        let holder = held.holders.get(id)?;
        let HolderStage::Granted { waiter, .. } = &holder.stage else {
            return None;
        };
        let lease = held.make_lease(id, &waiter.terms, holder.fencing, cx);
        let accepted = HolderStage::Accepted {
            lease: lease.clone(),
            bounds: HoldBounds::default(),
        };
        let stage = held
            .holders
            .change(id, |holder| std::mem::replace(&mut holder.stage, accepted))?;
        if let HolderStage::Granted { waiter, .. } = stage {
            cx.actions.extend(waiter.waker.map(Action::Drop));
        }
        Some(lease)
    }

    /// Withdraws a grant that its task has not accepted. Returns the waiter, and the position of the lease.
    pub(super) fn withdraw_grant(&mut self, id: TaskId) -> Option<(usize, Box<LocalWaiter<W>>)> {
        let at = self.granting_lease(id)?;
        match self.leases[at].holders.remove(id)?.stage {
            HolderStage::Granted { waiter, .. } => Some((at, waiter)),
            HolderStage::Accepted { .. } => None,
        }
    }

    pub(super) fn granted_tasks(&self) -> Vec<TaskId> {
        let holders = self.leases.iter().flat_map(|held| held.holders.iter());
        let granted = holders.filter(|holder| holder.is_granted());
        granted.map(|holder| holder.id).collect()
    }

    /// Grants a server lease to a waiter, and wakes it.
    pub(super) fn grant(
        &mut self,
        at: usize,
        id: TaskId,
        fencing: FencingToken,
        cx: &mut Transition<'_, W, L, O>,
    ) {
        if let Some(mut waiter) = self.remove_waiter(id) {
            cx.actions.extend(waiter.waker.take().map(Action::Wake));
            let held = &mut self.leases[at];
            if let Some(share) = &mut held.share {
                share.unused_until = None;
            }
            held.holders.insert(LocalHolder {
                id,
                fencing,
                unrenewed_until: None,
                stage: HolderStage::Granted {
                    until: cx.now.after(POLL_WITHIN),
                    waiter,
                },
            });
        }
    }

    fn granting_lease(&self, id: TaskId) -> Option<usize> {
        let at = self.lease_of(id)?;
        let holder = self.leases[at].holders.get(id)?;
        holder.is_granted().then_some(at)
    }

    /// Ends the waits whose deadline has passed: at once if a reply is known, or else with the reply that is in flight.
    pub(super) fn end_waits(&mut self, cx: &mut Transition<'_, W, L, O>) {
        while let Some(waiting) = &mut self.waiting
            && let Some(id) = waiting.queue.pass_deadline(cx.now)
        {
            let decided = self.request().is_none_or(AcquireRequest::has_reply);
            if decided && let Some(waiter) = self.remove_waiter(id) {
                let refusal = self.refusal(waiter.terms.ttl, cx.now);
                self.refuse_all([(id, waiter)], &refusal, cx);
            }
        }
    }

    /// Returns the refusal for a task that may not wait any longer.
    pub(super) fn refusal(&self, ttl: Duration, now: Moment) -> Refusal {
        // Before the first reply, the process may only know that another waiter is ahead of this one.
        let expected = Refusal::busy_until(now.after(ttl));
        let request = self.request();
        let replied = request.and_then(|request| request.last_reply.clone());
        let held = self.leases.iter().map(ServerLease::ends_at).min();
        replied
            .or_else(|| held.map(Refusal::busy_until))
            .unwrap_or(expected)
    }

    pub(super) fn refuse_impatient(&mut self, refusal: &Refusal, cx: &mut Transition<'_, W, L, O>) {
        let waiters = self.waiting_mut().queue.remove_impatient(|_| true);
        self.refuse_all(waiters, refusal, cx);
    }

    /// Refuses the impatient waiters that ask with this number of permits, or with a smaller one.
    pub(super) fn refuse_impatient_for(
        &mut self,
        permits: u16,
        refusal: &Refusal,
        cx: &mut Transition<'_, W, L, O>,
    ) {
        let is_for = |waiter: &LocalWaiter<W>| matches!(waiter.terms.mode, Mode::Permits(one) if one <= permits);
        let waiters = self.waiting_mut().queue.remove_impatient(is_for);
        self.refuse_all(waiters, refusal, cx);
    }

    /// Refuses the waiters with this ttl or a shorter one, because the server is too slow for it.
    pub(super) fn refuse_as_too_slow(
        &mut self,
        took: Duration,
        ttl: Duration,
        cx: &mut Transition<'_, W, L, O>,
    ) {
        let refusal = Refusal::TooSlow { took, ttl };
        self.refuse_those(|waiter| waiter.terms.ttl <= ttl, &refusal, cx);
    }

    pub(super) fn refuse_those(
        &mut self,
        which: impl Fn(&LocalWaiter<W>) -> bool,
        refusal: &Refusal,
        cx: &mut Transition<'_, W, L, O>,
    ) {
        let waiters = self.waiting_mut().queue.remove_those(which);
        self.refuse_all(waiters, refusal, cx);
    }

    /// Stores the refusals of waiters that were removed from the queue, and wakes their tasks.
    pub(super) fn refuse_all(
        &mut self,
        waiters: impl IntoIterator<Item = (TaskId, Box<LocalWaiter<W>>)>,
        refusal: &Refusal,
        cx: &mut Transition<'_, W, L, O>,
    ) {
        for (id, waiter) in waiters {
            self.waiting_mut().refused.insert(id, refusal.clone());
            cx.actions.extend(waiter.waker.map(Action::Wake));
        }
    }
}
