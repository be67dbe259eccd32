//! The transitions of a server lease, from its first holder to its release or loss.
//!
//! An exclusive lease is handed over from task to task without a message, if enough of it is certain to remain, if there is
//! a fencing token for the next task, and if other processes have not waited for too long. Otherwise it returns to the
//! server. Each task has a fencing token of its own.
//!
//! All tasks of a share have the token of its phase. A permit returns to the server after each task, and the server grants
//! it to the first waiter for any permit.

use crate::{
    engine::{
        batch::Next,
        event::AfterRelease,
        key_state::KeyState,
        local_holders::{HolderStage, LocalHolder},
        reply::{Contended, Renewed},
        server_lease::{RenewalPlan, RenewalReply, validity},
        terms::HoldBounds,
        transition::{Action, TaskId, Transition},
    },
    error::LeaseLost,
    mode::RequestKind,
    moment::Moment,
};

impl<W, L, O> KeyState<W, L, O>
where
    L: Clone,
    O: Clone + PartialEq,
{
    pub(super) fn begin(&mut self, id: TaskId, from_now_on: HoldBounds) {
        if let Some(at) = self.lease_of(id) {
            self.leases[at].holders.change(id, |holder| {
                if let HolderStage::Accepted { bounds, .. } = &mut holder.stage {
                    *bounds = from_now_on;
                }
            });
        }
    }

    pub(super) fn release(
        &mut self,
        id: TaskId,
        owner: &O,
        cx: &mut Transition<'_, W, L, O>,
    ) -> AfterRelease<O> {
        self.expire(cx);
        match self.lease_of(id) {
            Some(at) => {
                let holder = self.leases[at].holders.remove(id);
                let kept_until = holder.and_then(|holder| holder.bounds().kept_until);
                self.pass(at, kept_until, cx)
            }
            // The task has lost the share, but other tasks still have it.
            None if self.position_of(owner).is_some() => AfterRelease::Passed,
            None => AfterRelease::NotHeld,
        }
    }

    pub(super) fn lose(&mut self, id: TaskId, reason: LeaseLost, cx: &mut Transition<'_, W, L, O>) {
        if let Some(at) = self.lease_of(id) {
            match reason {
                // These reasons concern only this task: its own `max_hold`, or another key that it acquired. Other tasks
                // keep the share.
                LeaseLost::MaxHold | LeaseLost::OtherKey => self.end_holder(at, id, reason, cx),
                _ => self.end_lease(at, reason, cx),
            }
        }
    }

    pub(super) fn lose_all(&mut self, reason: LeaseLost, cx: &mut Transition<'_, W, L, O>) {
        // Bounded, because each iteration removes a lease.
        while !self.leases.is_empty() {
            self.end_lease(0, reason, cx);
        }
    }

    pub(super) fn renewed(
        &mut self,
        owner: &O,
        reply: &RenewalReply<'_>,
        cx: &mut Transition<'_, W, L, O>,
    ) {
        self.expire(cx);
        let Some(at) = self.position_of(owner) else {
            return;
        };
        let held = &mut self.leases[at];
        let takes_tokens = reply.tokens > 0;
        if takes_tokens {
            held.is_prefetching = false;
        }
        match reply.result {
            Ok(Renewed::Extended { tokens, contended }) => {
                if takes_tokens {
                    cx.actions.push(Action::Learn(owner.clone(), tokens.last()));
                    held.next_tokens = *tokens;
                    held.batch.note(*contended, cx.now);
                } else {
                    held.renewal.end(cx.now);
                }
                held.extend(validity(reply.sent, held.ttl), cx);
                if *contended != Contended::NoneWaiting {
                    self.close_share(at, cx);
                }
            }
            Ok(Renewed::NotOurs) => self.end_lease(at, LeaseLost::TakenAway, cx),
            Err(_) if !takes_tokens => held.renewal.retry(reply.retry_in, cx),
            // Without new tokens, the lease returns to the server after the last one has been used.
            Err(_) => {}
        }
        let held = self.leases.get(at);
        if takes_tokens && held.is_some_and(|held| held.owner == *owner && held.holders.is_empty())
        {
            self.continue_without_holder(at, None, cx);
        }
    }

    pub(super) fn stop_renewing(&mut self, id: TaskId, now: Moment) {
        if let Some(at) = self.lease_of(id) {
            let held = &mut self.leases[at];
            if held.share.is_some() {
                let until = validity(now, held.ttl);
                held.holders
                    .change(id, |holder| holder.unrenewed_until = Some(until));
            } else {
                held.renewal = RenewalPlan::Off;
            }
        }
    }

    /// Ends what has run out: leases, holders whose `max_hold` has elapsed, and grants that their tasks have not
    /// accepted.
    pub(super) fn expire(&mut self, cx: &mut Transition<'_, W, L, O>) {
        // Iterates backwards, because a lease that ends is removed from the list.
        for at in (0..self.leases.len()).rev() {
            let held = &mut self.leases[at];
            if cx.now < held.ends_at() {
                continue;
            }
            let ended = held.holders.ended(cx.now);
            let is_over = cx.now >= held.valid_until;
            let is_granted =
                |id: &TaskId| held.holders.get(*id).is_some_and(LocalHolder::is_granted);
            let (not_accepted, too_long): (Vec<_>, Vec<_>) =
                ended.into_iter().partition(is_granted);
            let owner = held.owner.clone();
            for id in &not_accepted {
                if let Some((_, waiter)) = self.withdraw_grant(*id) {
                    self.waiting_mut().queue.insert(*id, waiter);
                }
            }
            if !not_accepted.is_empty() {
                // If one task has not polled for so long, others may not poll either, because the process was stopped or
                // its runtime is blocked. All of them are woken, and the lock returns to the server until one of them
                // polls.
                let wakers = self.waiting_mut().queue.put_all_to_sleep();
                cx.actions.extend(wakers.into_iter().map(Action::Wake));
                self.continue_without_holder(at, None, cx);
            }
            for id in too_long {
                if let Some(at) = self.lease_of(id).filter(|_| !is_over) {
                    let holder = self.leases[at].holders.get(id);
                    let reason = holder.map_or(LeaseLost::Expired, |holder| holder.ends_by(cx.now));
                    self.end_holder(at, id, reason, cx);
                }
            }
            if let Some(at) = self.position_of(&owner).filter(|_| is_over) {
                self.end_lease(at, LeaseLost::Expired, cx);
            }
        }
    }

    /// Hands a lease that may no longer have a holder to the next waiter, or returns it to the server.
    pub(super) fn continue_without_holder(
        &mut self,
        at: usize,
        kept_until: Option<Moment>,
        cx: &mut Transition<'_, W, L, O>,
    ) {
        if let AfterRelease::ReturnToServer(release) = self.pass(at, kept_until, cx) {
            cx.actions.push(Action::Release(release));
        }
    }

    fn pass(
        &mut self,
        at: usize,
        kept_until: Option<Moment>,
        cx: &mut Transition<'_, W, L, O>,
    ) -> AfterRelease<O> {
        match self.kind {
            RequestKind::Exclusive => self.pass_on(at, kept_until, cx),
            RequestKind::Shared => self.keep_share(at, kept_until, cx),
            RequestKind::Permits | RequestKind::Once => self.return_to_server(at, kept_until),
        }
    }

    fn pass_on(
        &mut self,
        at: usize,
        kept_until: Option<Moment>,
        cx: &mut Transition<'_, W, L, O>,
    ) -> AfterRelease<O> {
        let held = &mut self.leases[at];
        let is_kept = kept_until.is_some_and(|until| cx.now < until);
        let waiting = self.waiting.as_ref();
        let next = waiting
            .and_then(|waiting| waiting.queue.head())
            .filter(|(_, waiter)| held.suits(&waiter.terms, cx));
        if let Some((id, _)) = next
            && !is_kept
        {
            let is_prefetching = held.is_prefetching;
            let fencing = match held.batch.next(is_prefetching, cx.now, &cx.limits) {
                Next::PassOn => held.take_token(),
                Next::AwaitReply => None,
                Next::ReturnToServer => {
                    if held.batch.contended == Some(Contended::OthersWaiting) {
                        // A release does not grant the lock to a process that polls. Without a pause, this process would
                        // take the lock again at once, and other processes would hardly ever find it free.
                        let pause = cx.host.jitter(cx.polling_pause).min(held.ttl / 4);
                        self.waiting_mut().acquires_from = Some(cx.now.after(pause));
                    }
                    return self.return_to_server(at, kept_until);
                }
            };
            if let Some(fencing) = fencing {
                let prefetches = held.batch.pass(cx.now) || held.next_tokens.left() == 0;
                // After the last task of a batch, no more tokens are needed.
                let is_last = held.batch.next(true, cx.now, &cx.limits) == Next::ReturnToServer;
                if !is_prefetching && prefetches && !is_last {
                    held.prefetch(cx);
                }
                cx.actions.push(Action::HandedOverLocally);
                self.grant(at, id, fencing, cx);
                return AfterRelease::Passed;
            }
            if is_prefetching {
                // The reply in flight has more tokens, and arrives sooner than the lock could return to the server and be
                // granted again.
                return AfterRelease::Passed;
            }
        }
        self.return_to_server(at, kept_until)
    }

    /// Removes a lease from the list, and returns the action that releases it.
    pub(super) fn return_to_server(
        &mut self,
        at: usize,
        kept_until: Option<Moment>,
    ) -> AfterRelease<O> {
        let held = self.leases.swap_remove(at);
        AfterRelease::ReturnToServer(held.into_release(kept_until))
    }

    /// Ends the lease for one task. If there are other tasks that have it, they keep it.
    fn end_holder(
        &mut self,
        at: usize,
        id: TaskId,
        reason: LeaseLost,
        cx: &mut Transition<'_, W, L, O>,
    ) {
        let held = &mut self.leases[at];
        if held.holders.iter().nth(1).is_none() {
            return self.end_lease(at, reason, cx);
        }
        if let Some(holder) = held.holders.remove(id) {
            let kept_until = holder.bounds().kept_until;
            if let Some(share) = &mut held.share {
                share.kept_until = share.kept_until.max(kept_until);
            }
            if let HolderStage::Accepted { lease, .. } = holder.stage {
                cx.actions.push(Action::End { lease, reason });
            }
        }
    }

    /// Ends a lease. If a task has accepted it, the key stays on the server until the guard is dropped, but other tasks of
    /// this process may already request the lock.
    fn end_lease(&mut self, at: usize, reason: LeaseLost, cx: &mut Transition<'_, W, L, O>) {
        let mut held = self.leases.swap_remove(at);
        let mut is_accepted = false;
        for holder in std::mem::take(&mut held.holders).into_each() {
            match holder.stage {
                HolderStage::Accepted { lease, .. } => {
                    is_accepted = true;
                    cx.actions.push(Action::End { lease, reason });
                }
                // The task has not seen the grant, so it waits again, in its old position.
                HolderStage::Granted { waiter, .. } => {
                    self.waiting_mut().queue.insert(holder.id, waiter);
                }
            }
        }
        if !is_accepted {
            cx.actions.push(Action::Release(held.into_release(None)));
        }
    }

    /// Returns the position of the lease that this task has or was granted.
    pub(super) fn lease_of(&self, id: TaskId) -> Option<usize> {
        let mut leases = self.leases.iter();
        leases.position(|held| held.holders.get(id).is_some())
    }

    pub(super) fn position_of(&self, owner: &O) -> Option<usize> {
        let mut leases = self.leases.iter();
        leases.position(|held| held.owner == *owner)
    }
}
