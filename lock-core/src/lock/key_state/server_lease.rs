//! The right that the server gave this process, which its tasks have in turn.

use std::time::Duration;

use crate::{
    fencing::{FencingBlock, FencingToken},
    lock::key_state::{
        action::{Action, BATCHED_WITHIN, ReleaseAction, TaskId, Transition},
        batch::Batch,
        request::{AcquireRequest, Granted, Rivals},
        wait_queue::Waiter,
    },
    options::{AutoRenew, Terms},
    runtime::clock::Moment,
};

#[derive(Clone, Debug)]
pub(crate) struct ServerLease<W, L, O> {
    pub(crate) owner: O,
    pub(crate) ttl: Duration,
    pub(crate) valid_until: Moment,
    pub(crate) renewal: RenewalPlan,
    /// Fencing tokens for the next holders: what is left of one block, and the next one, which is larger throughout.
    pub(super) tokens: FencingBlock,
    pub(super) next_tokens: FencingBlock,
    /// When the prefetch left that is in flight.
    pub(super) prefetch: Option<Moment>,
    pub(super) batch: Batch,
    /// Empty only while the last one has released, and the next one needs a token that is being fetched.
    pub(crate) holders: Vec<LocalHolder<W, L>>,
    /// Whether a copy of its request may still be executed on another connection. Then it is not passed on, and its release also
    /// removes an entry from the queue.
    pub(super) is_astray: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RenewalPlan {
    Off,
    At(Moment),
    /// Not sent again before its reply, which the store bounds.
    InFlight,
}

#[derive(Clone, Debug)]
pub(crate) struct LocalHolder<W, L> {
    pub(crate) id: TaskId,
    pub(crate) terms: Terms,
    pub(crate) fencing: FencingToken,
    pub(crate) stage: HolderStage<W, L>,
}

#[derive(Clone, Debug)]
pub(crate) enum HolderStage<W, L> {
    /// Its task was woken and has not polled. It loses the grant at this moment.
    Granted {
        until: Moment,
        waiter: Box<Waiter<W>>,
    },
    /// Its task has it. `began`: when the time of `max_hold` and `min_hold` began, if they matter.
    Taken { lease: L, began: Option<Moment> },
}

impl<W, L> LocalHolder<W, L> {
    /// When it loses the lease, by what is asked of this holder.
    pub(super) fn ends_at(&self) -> Option<Moment> {
        match &self.stage {
            HolderStage::Granted { until, .. } => Some(*until),
            HolderStage::Taken { began, .. } => Some((*began)?.after(self.terms.max_hold?)),
        }
    }

    pub(super) fn is_granted(&self) -> bool {
        matches!(self.stage, HolderStage::Granted { .. })
    }
}

impl<W, L, O> ServerLease<W, L, O>
where
    O: Clone,
{
    pub(super) fn new(
        owner: O,
        granted: &Granted,
        request: &AcquireRequest<O>,
        renew: AutoRenew,
        cx: &Transition<'_, W, L, O>,
    ) -> Self {
        let mut held = Self {
            owner,
            ttl: granted.ttl,
            valid_until: granted.valid_until,
            renewal: match renew {
                AutoRenew::On => RenewalPlan::At(cx.now),
                AutoRenew::Off => RenewalPlan::Off,
            },
            tokens: granted.tokens,
            next_tokens: FencingBlock::EMPTY,
            prefetch: None,
            batch: Batch::new(request.rivals == Rivals::Queue, cx.now),
            holders: Vec::with_capacity(1),
            is_astray: request.is_astray,
        };
        held.plan_renewal(cx);
        held
    }

    /// The first end that is not moved by a renewal in time.
    pub(crate) fn ends_at(&self) -> Moment {
        let ends = self.holders.iter().filter_map(LocalHolder::ends_at);
        ends.fold(self.valid_until, Moment::min)
    }

    pub(super) fn leases(&self) -> impl Iterator<Item = &L> {
        self.holders
            .iter()
            .filter_map(|holder| match &holder.stage {
                HolderStage::Taken { lease, .. } => Some(lease),
                HolderStage::Granted { .. } => None,
            })
    }

    pub(super) fn due(&self) -> Moment {
        match self.renewal {
            RenewalPlan::At(at) => at.min(self.ends_at()),
            RenewalPlan::Off | RenewalPlan::InFlight => self.ends_at(),
        }
    }

    pub(super) fn renew_if_due(&mut self, now: Moment) -> Option<Action<W, L, O>> {
        match self.renewal {
            RenewalPlan::At(at) if at <= now.after(BATCHED_WITHIN) => {
                self.renewal = RenewalPlan::InFlight;
                Some(Action::Renew {
                    owner: self.owner.clone(),
                    ttl: self.ttl,
                    valid_until: self.valid_until,
                })
            }
            _ => None,
        }
    }

    /// What was taken or renewed since then is known to the server of the connection.
    pub(super) fn renew_if_older_than(&mut self, since: Moment, now: Moment) {
        if matches!(self.renewal, RenewalPlan::At(_))
            && self.valid_until < validity(since, self.ttl)
        {
            self.renewal = RenewalPlan::At(now);
        }
    }

    pub(super) fn prefetch(&mut self, now: Moment) -> Action<W, L, O> {
        self.prefetch = Some(now);
        Action::Prefetch {
            owner: self.owner.clone(),
            ttl: self.ttl,
        }
    }

    /// The next renewal is due when a third of what is left is over, a little apart from those of others.
    pub(super) fn plan_renewal(&mut self, cx: &Transition<'_, W, L, O>) {
        if self.renewal != RenewalPlan::Off {
            let third = self.valid_until.since(cx.now).min(self.ttl) / 3;
            let pause = third * 4 / 5 + (cx.jitter)(third / 5);
            self.renewal = RenewalPlan::At(cx.now.after(pause));
        }
    }

    pub(super) fn take_token(&mut self) -> Option<FencingToken> {
        if self.tokens.left() == 0 {
            self.tokens = std::mem::replace(&mut self.next_tokens, FencingBlock::EMPTY);
        }
        self.tokens.take()
    }

    /// Whether at least half of its ttl is left, which a task may expect that gets it.
    pub(super) fn is_fresh(&self, now: Moment) -> bool {
        self.valid_until.since(now) >= self.ttl / 2
    }

    /// Whether it may be passed to a task with these terms, however many processes wait.
    pub(super) fn suits(&self, terms: &Terms, cx: &Transition<'_, W, L, O>) -> bool {
        terms.ttl == self.ttl
            && terms.renew == AutoRenew::On
            && self.renewal != RenewalPlan::Off
            && !self.is_astray
            && self.is_fresh(cx.now)
    }

    pub(super) fn remove_holder(&mut self, id: TaskId) -> Option<LocalHolder<W, L>> {
        let position = self.holders.iter().position(|holder| holder.id == id)?;
        Some(self.holders.swap_remove(position))
    }

    pub(super) fn granted_position(&self, id: TaskId) -> Option<usize> {
        let is_its_grant = |holder: &LocalHolder<W, L>| holder.id == id && holder.is_granted();
        self.holders.iter().position(is_its_grant)
    }

    pub(super) fn into_release(self, kept_until: Option<Moment>) -> ReleaseAction<O> {
        ReleaseAction {
            owner: self.owner,
            ttl: self.ttl,
            valid_until: self.valid_until,
            kept_until,
            is_queued: self.is_astray,
        }
    }
}

/// Until when a lease is certain that was asked for at `sent`: minus 1 % of the ttl and 2 ms, because the server's clock
/// may run faster than ours and its timer may be early.
pub(crate) fn validity(sent: Moment, ttl: Duration) -> Moment {
    sent.after(ttl.saturating_sub(ttl / 100 + Duration::from_millis(2)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_allowance_for_drift_never_goes_below_the_moment_of_sending() {
        let sent = Moment::from_nanos(1_000_000_000);
        assert_eq!(validity(sent, Duration::ZERO), sent);
        let valid = validity(sent, Duration::from_secs(10)).since(sent);
        assert_eq!(valid, Duration::from_millis(9_898));
    }
}
