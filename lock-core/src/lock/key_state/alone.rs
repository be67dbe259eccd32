//! A key that one task takes and nothing else disturbs: most keys, from the first request to the release.
//!
//! Such a key needs no queue, no list of leases and no list of holders. Its events say as much: a task began to wait, and perhaps the
//! reply to its request granted the lock. So only these are kept, with their times. The reply that grants and the release are applied
//! here. Any other event makes the full state first, by the same events at the same times.
//!
//! An event that is applied here has the outcome and the actions that it has for the full state, and leaves what makes the next full
//! state. The explorer in `model/` compares both at each step.
//!
//! Rejected: the same for shares, permits and runs of bodies. Their grants have more cases, which this file would have to repeat.

use std::time::Duration;

use crate::{
    lock::key_state::{
        action::{
            AcquireAction, Action, Host, NewLease, POLL_WITHIN, ReleaseAction, TaskId, Transition,
        },
        event::Event,
        full_state::FullState,
        request::{AcquireReply, Granted},
        server_lease::{RenewalPlan, validity},
        terms::Terms,
    },
    mode::Mode,
    options::Wait,
    runtime::clock::Moment,
    store::{AcquireOutcome, Grant, QueueMode},
};

#[derive(Clone, Debug)]
pub(super) struct Alone<W, L, O> {
    id: TaskId,
    terms: Terms,
    deadline: Option<Moment>,
    /// `None` after it was woken, and once the task has the lease.
    pub(super) waker: Option<W>,
    pub(super) owner: O,
    known_fencing: u64,
    /// When the task began to wait and its request was sent.
    sent: Moment,
    pub(super) held: Option<Held<L>>,
}

/// What the task took.
#[derive(Clone, Debug)]
pub(super) struct Held<L> {
    pub(super) lease: L,
    grant: Grant,
    taken_at: Moment,
    pub(super) valid_until: Moment,
    renewal: RenewalPlan,
}

impl<W, L, O> Alone<W, L, O>
where
    L: Clone,
    O: Clone + PartialEq,
{
    /// A task begins to wait for a key of which nothing is known, and asks for it.
    pub(super) fn wait(
        id: TaskId,
        terms: &Terms,
        deadline: Option<Moment>,
        waker: &mut Option<W>,
        cx: &mut Transition<'_, W, L, O>,
    ) -> Self {
        let owner = cx.host.new_owner(terms.mode);
        let known_fencing = cx.host.known_fencing(&owner);
        let (queue_mode, queued_ttl) = match terms.wait {
            Wait::No => (QueueMode::DoNotQueue, None),
            Wait::For(_) | Wait::Forever => (QueueMode::JoinQueue, Some(terms.ttl)),
        };
        cx.actions.push(Action::Acquire(AcquireAction {
            owner: owner.clone(),
            ttl: terms.ttl,
            tokens: 1,
            queue_mode,
            queued_ttl,
            known_fencing,
            polled_by: Some(id),
        }));
        Self {
            id,
            terms: *terms,
            deadline,
            waker: waker.take(),
            owner,
            known_fencing,
            sent: cx.now,
            held: None,
        }
    }

    /// What the reply grants to the task, if it does, and if nothing else follows from it.
    pub(super) fn grant(&self, owner: &O, reply: &AcquireReply, now: Moment) -> Option<Grant> {
        let Ok(AcquireOutcome::Granted(grant)) = reply.result else {
            return None;
        };
        let is_plain = !reply.is_astray && !grant.has_more && grant.tokens.left() > 0;
        let is_asked_for = self.held.is_none() && self.owner == *owner;
        (is_plain && is_asked_for && !self.granted(grant).is_short(now)).then_some(grant)
    }

    fn granted(&self, grant: Grant) -> Granted {
        Granted {
            grant,
            ttl: self.terms.ttl,
            valid_until: validity(self.sent, self.terms.ttl),
        }
    }

    /// The task takes a grant.
    pub(super) fn take(&mut self, grant: Grant, cx: &mut Transition<'_, W, L, O>) -> Option<L> {
        let fencing = { grant.tokens }.take()?;
        let valid_until = self.granted(grant).valid_until;
        cx.actions.extend(self.waker.take().map(Action::Drop));
        let learned = Action::Learn(self.owner.clone(), grant.tokens.last());
        cx.actions.push(learned);
        let renewal = RenewalPlan::first(&self.terms, valid_until, cx);
        let lease = cx.host.new_lease(NewLease {
            id: self.id,
            owner: &self.owner,
            terms: &self.terms,
            fencing,
            permit: grant.permit,
            valid_until,
            is_renewed: renewal != RenewalPlan::Off,
            taken_at: cx.now,
        });
        self.held = Some(Held {
            lease: lease.clone(),
            grant,
            taken_at: cx.now,
            valid_until,
            renewal,
        });
        Some(lease)
    }

    /// What gives back the lease that the task has by this owner token, as long as the lease is certain.
    pub(super) fn release(&self, id: TaskId, owner: &O, now: Moment) -> Option<ReleaseAction<O>> {
        let held = self.held.as_ref()?;
        let is_held = self.id == id && self.owner == *owner && now < held.valid_until;
        is_held.then(|| ReleaseAction {
            owner: self.owner.clone(),
            ttl: self.terms.ttl,
            valid_until: held.valid_until,
            kept_until: None,
            is_queued: false,
        })
    }

    /// When something is due next.
    pub(super) fn due(&self) -> Moment {
        match &self.held {
            None => {
                let polled = self.sent.after(POLL_WITHIN);
                self.deadline
                    .map_or(polled, |deadline| deadline.min(polled))
            }
            Some(held) => held.renewal.due(held.valid_until),
        }
    }

    /// Makes the full state, by the events that made this one.
    pub(super) fn into_full(mut self, cx: &Transition<'_, W, L, O>) -> FullState<W, L, O> {
        let mut waker = self.waker.take();
        let host = Before {
            owner: &self.owner,
            known_fencing: self.known_fencing,
            lease: self.held.as_ref().map(|held| &held.lease),
        };
        let mut before = Transition {
            now: self.sent,
            limits: cx.limits,
            polling_pause: cx.polling_pause,
            host: &host,
            // What follows from these events was carried out.
            actions: Vec::new(),
        };
        let mut full = FullState::new(self.terms.mode.kind());
        let wait = Event::Wait {
            id: self.id,
            terms: &self.terms,
            deadline: self.deadline,
            waker: &mut waker,
        };
        full.apply(wait, &mut before);
        if let Some(held) = &self.held {
            before.now = held.taken_at;
            let reply = AcquireReply {
                result: Ok(AcquireOutcome::Granted(held.grant)),
                is_settled: true,
                has_not_left: false,
                is_astray: false,
            };
            let poll = Event::Poll {
                id: self.id,
                waker: &mut None,
                reply: Some((&self.owner, reply)),
            };
            full.apply(poll, &mut before);
            for lease in &mut full.leases {
                lease.renewal = held.renewal;
            }
        }
        full
    }
}

/// What was made when the events happened.
struct Before<'a, L, O> {
    owner: &'a O,
    known_fencing: u64,
    lease: Option<&'a L>,
}

impl<W, L: Clone, O: Clone> Host<W, L, O> for Before<'_, L, O> {
    fn new_owner(&self, _: Mode) -> O {
        self.owner.clone()
    }

    fn new_lease(&self, _: NewLease<'_, O>) -> L {
        let lease = self.lease.cloned();
        lease.expect("a task takes a lease only by the event that granted it")
    }

    fn known_fencing(&self, _: &O) -> u64 {
        self.known_fencing
    }

    /// The plan of the renewal is known, and replaces the one that is made with this.
    fn jitter(&self, _: Duration) -> Duration {
        Duration::ZERO
    }
}
