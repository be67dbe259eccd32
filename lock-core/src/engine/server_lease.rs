//! A lease that the server granted to this process, which its tasks use in turn or together.

use std::time::Duration;

use crate::{
    engine::{
        batch::Batch,
        local_holders::{HolderStage, LocalHolder, LocalHolders},
        reply::{Grant, Renewed},
        request::{AcquireRequest, Rivals},
        terms::{HoldBounds, Terms},
        transition::{Action, BATCHED_WITHIN, NewLease, ReleaseAction, TaskId, Transition},
    },
    failure::Failure,
    fencing::{FencingBlock, FencingToken},
    mode::Mode,
    moment::Moment,
    options::AutoRenew,
};

#[derive(Clone, Debug)]
pub(crate) struct ServerLease<W, L, O> {
    pub(crate) owner: O,
    pub(crate) ttl: Duration,
    pub(crate) valid_until: Moment,
    pub(crate) renewal: RenewalPlan,
    /// The fencing tokens for the next holders.
    pub(crate) tokens: FencingBlock,
    /// The tokens to be used after `tokens`, all of which are larger.
    pub(crate) next_tokens: FencingBlock,
    /// `true` if a renewal that takes tokens is in flight, in addition to the planned ones.
    pub(crate) is_prefetching: bool,
    pub(crate) batch: Batch,
    /// The tasks that hold the lease. An exclusive lease has no holder only after the last one has released, while the
    /// token for the next one is in flight.
    pub(crate) holders: LocalHolders<W, L>,
    /// The number of the permit, for a lease with permits.
    pub(crate) permit: Option<u16>,
    /// Set for a shared lease.
    pub(crate) share: Option<Share>,
    /// `true` if a copy of its request may still be executed on another connection. Such a lease is not handed over, and
    /// its release also removes an entry from the queue.
    pub(crate) is_astray: bool,
}

/// The state of a shared lease beyond that of other leases: see `sharing.rs`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Share {
    /// `true` if further tasks are admitted. No task is admitted after an exclusive request has begun to wait, or if the
    /// lease cannot serve more than its first task.
    pub(crate) is_open: bool,
    /// The end of the time for which the share is kept without a task.
    pub(crate) unused_until: Option<Moment>,
    /// The end of the longest `min_hold` of its tasks, until which the server must keep the key.
    pub(crate) kept_until: Option<Moment>,
}

/// A grant that has no holder yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Granted {
    pub(crate) grant: Grant,
    pub(crate) ttl: Duration,
    pub(crate) valid_until: Moment,
}

impl Granted {
    /// Returns `true` if less than half of the ttl is left, which is too little for a task to begin with.
    pub(crate) fn is_short(&self, now: Moment) -> bool {
        self.valid_until.since(now) < self.ttl / 2
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RenewalPlan {
    Off,
    At(Moment),
    /// A renewal is in flight, and is not repeated before its reply arrives, for which the backend has a time-out.
    InFlight,
}

impl RenewalPlan {
    /// Returns the plan for a lease that is granted now, whose first renewal has not been planned yet.
    pub(crate) fn of(terms: &Terms, now: Moment) -> Self {
        match terms.renew {
            AutoRenew::On => Self::At(now),
            AutoRenew::Off => Self::Off,
        }
    }

    /// Plans the next renewal after a third of the time that is left, unless one is in flight. A jitter spreads the
    /// renewals of different leases.
    pub(crate) fn plan_anew<W, L, O>(
        &mut self,
        ttl: Duration,
        valid_until: Moment,
        cx: &Transition<'_, W, L, O>,
    ) {
        if let Self::At(at) = self {
            let third = valid_until.since(cx.now).min(ttl) / 3;
            let pause = third * 4 / 5 + cx.host.jitter(third / 5);
            *at = cx.now.after(pause);
        }
    }

    /// Makes a planned renewal due now.
    pub(crate) fn hasten(&mut self, now: Moment) {
        if let Self::At(at) = self {
            *at = now;
        }
    }

    /// Returns `true` if the renewal must be sent now, and records that it is in flight.
    pub(crate) fn begin_if_due(&mut self, now: Moment) -> bool {
        let is_due = matches!(self, Self::At(at) if *at <= now.after(BATCHED_WITHIN));
        if is_due {
            *self = Self::InFlight;
        }
        is_due
    }

    /// Records that the renewal in flight has failed, or its reply is late. It is retried until the lease ends.
    pub(crate) fn retry<W, L, O>(&mut self, retry_in: Duration, cx: &Transition<'_, W, L, O>) {
        if *self == Self::InFlight {
            *self = Self::At(cx.now.after(cx.host.jitter(retry_in)));
        }
    }

    /// Records that the renewal in flight has extended the lease.
    pub(crate) fn end(&mut self, now: Moment) {
        if *self == Self::InFlight {
            *self = Self::At(now);
        }
    }

    /// Returns when something is due next for a lease that ends at this moment unless it is renewed.
    pub(crate) fn due(self, ends: Moment) -> Moment {
        match self {
            Self::At(at) => at.min(ends),
            Self::Off | Self::InFlight => ends,
        }
    }
}

/// The outcome of a renewal.
#[derive(Debug)]
pub(crate) struct RenewalReply<'a> {
    /// When the renewal was sent. The lease counts from then, even if the reply is late.
    pub(crate) sent: Moment,
    /// The number of fencing tokens that were requested.
    pub(crate) tokens: u32,
    pub(crate) result: &'a Result<Renewed, Failure>,
    pub(crate) retry_in: Duration,
}

impl<W, L, O> ServerLease<W, L, O>
where
    O: Clone,
{
    pub(crate) fn new(
        owner: O,
        granted: &Granted,
        request: &AcquireRequest<O>,
        terms: &Terms,
        cx: &Transition<'_, W, L, O>,
    ) -> Self {
        let grant = &granted.grant;
        let is_wanted = grant.is_contended || request.is_contended;
        let mut held = Self {
            owner,
            ttl: granted.ttl,
            valid_until: granted.valid_until,
            renewal: RenewalPlan::of(terms, cx.now),
            tokens: grant.tokens,
            next_tokens: FencingBlock::EMPTY,
            is_prefetching: false,
            batch: Batch::new(request.rivals == Rivals::Queue, cx.now),
            holders: LocalHolders::default(),
            permit: grant.permit,
            // If the request is astray, a copy of it may be granted the key again after the release, so the share is closed
            // from the start.
            share: (terms.mode == Mode::Shared).then_some(Share {
                is_open: terms.renew == AutoRenew::On && !is_wanted && !request.is_astray,
                ..Share::default()
            }),
            is_astray: request.is_astray,
        };
        // If there are more waiters for this phase, the renewal stays due now, because it grants the phase to the next
        // ones.
        if !grant.has_more {
            held.renewal.plan_anew(held.ttl, held.valid_until, cx);
        }
        held
    }

    /// Returns when the lease or its first holder ends unless it is renewed in time, or an earlier moment.
    pub(crate) fn ends_at(&self) -> Moment {
        let first = self.holders.first_end();
        first.map_or(self.valid_until, |end| end.min(self.valid_until))
    }

    pub(crate) fn leases(&self) -> impl Iterator<Item = &L> {
        self.holders.iter().filter_map(LocalHolder::lease)
    }

    pub(crate) fn due(&self) -> Moment {
        let unused = self.share.as_ref().and_then(|share| share.unused_until);
        let ends = unused.map_or(self.ends_at(), |unused| unused.min(self.ends_at()));
        self.renewal.due(ends)
    }

    pub(crate) fn renew_if_due(&mut self, now: Moment) -> Option<Action<W, L, O>> {
        self.renewal.begin_if_due(now).then(|| self.renew(0))
    }

    pub(crate) fn prefetch(&mut self, cx: &mut Transition<'_, W, L, O>) {
        if cx.limits.prefetches {
            self.is_prefetching = true;
            cx.actions.push(self.renew(self.batch.block()));
        }
    }

    fn renew(&self, tokens: u32) -> Action<W, L, O> {
        Action::Renew {
            owner: self.owner.clone(),
            ttl: self.ttl,
            valid_until: self.valid_until,
            tokens,
        }
    }

    /// Makes the renewal due now if the lease was last acquired or renewed before `since`. Any later lease is known to the
    /// server of the current connection.
    pub(crate) fn renew_if_older_than(&mut self, since: Moment, now: Moment) {
        if self.valid_until < validity(since, self.ttl) {
            self.renewal.hasten(now);
        }
    }

    /// Extends the lease for all holders that are still renewed.
    pub(crate) fn extend(&mut self, valid_until: Moment, cx: &mut Transition<'_, W, L, O>)
    where
        L: Clone,
    {
        self.valid_until = self.valid_until.max(valid_until);
        self.renewal.plan_anew(self.ttl, self.valid_until, cx);
        for holder in self.holders.iter() {
            let valid_until = holder.unrenewed_until.unwrap_or(self.valid_until);
            cx.actions
                .extend(holder.lease().map(|lease| Action::Extend {
                    lease: lease.clone(),
                    valid_until: valid_until.min(self.valid_until),
                }));
        }
    }

    pub(crate) fn take_token(&mut self) -> Option<FencingToken> {
        if self.tokens.left() == 0 {
            self.tokens = std::mem::replace(&mut self.next_tokens, FencingBlock::EMPTY);
        }
        self.tokens.take()
    }

    /// Returns `true` if at least half of the ttl is left, as a task that gets the lease may expect.
    pub(crate) fn is_fresh(&self, now: Moment) -> bool {
        self.valid_until.since(now) >= self.ttl / 2
    }

    /// Returns `true` if the lease may be handed over to a task with these terms, as far as other processes do not matter.
    pub(crate) fn suits(&self, terms: &Terms, cx: &Transition<'_, W, L, O>) -> bool {
        terms.ttl == self.ttl
            && terms.renew == AutoRenew::On
            && self.renewal != RenewalPlan::Off
            && !self.is_astray
            && self.is_fresh(cx.now)
    }

    /// Returns `true` if a task with these terms may have the share together with the tasks that have it.
    pub(crate) fn admits(&self, terms: &Terms, now: Moment) -> bool {
        let share = self.share.as_ref();
        share.is_some_and(|share| share.is_open)
            && terms.ttl == self.ttl
            && terms.renew == AutoRenew::On
            && self.is_fresh(now)
    }

    /// Adds a task to the share.
    pub(crate) fn join(
        &mut self,
        id: TaskId,
        terms: &Terms,
        cx: &Transition<'_, W, L, O>,
    ) -> Option<L>
    where
        L: Clone,
    {
        self.share.as_mut()?.unused_until = None;
        let fencing = self.tokens.last();
        let lease = self.make_lease(id, terms, fencing, cx);
        self.holders.insert(LocalHolder {
            id,
            fencing,
            unrenewed_until: None,
            stage: HolderStage::Accepted {
                lease: lease.clone(),
                bounds: HoldBounds::default(),
            },
        });
        Some(lease)
    }

    /// Creates the lease of a task, as its observers will see it.
    pub(crate) fn make_lease(
        &self,
        id: TaskId,
        terms: &Terms,
        fencing: FencingToken,
        cx: &Transition<'_, W, L, O>,
    ) -> L {
        cx.host.new_lease(NewLease {
            id,
            owner: &self.owner,
            terms,
            fencing,
            permit: self.permit,
            valid_until: self.valid_until,
            is_renewed: self.renewal != RenewalPlan::Off,
            acquired_at: cx.now,
        })
    }

    pub(crate) fn into_release(self, kept_until: Option<Moment>) -> ReleaseAction<O> {
        let of_share = self.share.and_then(|share| share.kept_until);
        let kept_until = kept_until.max(of_share);
        ReleaseAction {
            owner: self.owner,
            ttl: self.ttl,
            valid_until: self.valid_until,
            kept_until,
            is_queued: self.is_astray,
        }
    }
}

/// Returns the end of a lease that was requested at `sent`, as far as it is certain: the ttl minus 1 % and 2 ms, because
/// the server's clock may run faster than ours, and its timer may be early.
pub(crate) fn validity(sent: Moment, ttl: Duration) -> Moment {
    sent.after(ttl.saturating_sub(ttl / 100 + Duration::from_millis(2)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_allowance_for_drift_never_ends_a_lease_before_it_was_requested() {
        let sent = Moment::from_nanos(1_000_000_000);
        assert_eq!(validity(sent, Duration::ZERO), sent);
        let valid = validity(sent, Duration::from_secs(10)).since(sent);
        assert_eq!(valid, Duration::from_millis(9_898));
    }
}
