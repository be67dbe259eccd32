//! A key that one task takes and nothing else disturbs: most keys, from the first request to the release.
//!
//! Such a key needs no queue, no list of leases and no list of holders. Its events say as much: a task began to wait, and perhaps the
//! reply to its request granted the lock, which was renewed since. So only these are kept, with their times. The reply that grants, the
//! renewals and the release are applied here. Any other event makes the full state first, by the same events at the same times.
//!
//! It is also small: a process may hold 100,000 keys for hours.
//!
//! An event that is applied here has the outcome and the actions that it has for the full state. What it leaves makes the next full
//! state. The test below compares both, for all short sequences of events.
//!
//! Rejected: the same for shares, permits and runs of bodies. Their grants have more cases, which this file would have to repeat.

use std::{mem, time::Duration};

use crate::{
    engine::{
        event::Event,
        full_state::FullState,
        reply::{AcquireOutcome, Grant, QueueMode, Renewed},
        request::AcquireReply,
        server_lease::{Granted, RenewalPlan, RenewalReply, validity},
        terms::Terms,
        transition::{
            AcquireAction, Action, Host, NewLease, POLL_WITHIN, ReleaseAction, TaskId, Transition,
        },
    },
    mode::Mode,
    moment::Moment,
    options::Wait,
};

#[derive(Clone, Debug)]
pub(super) struct Alone<W, L, O> {
    pub(super) id: TaskId,
    terms: Terms,
    pub(super) owner: O,
    /// When the task began to wait and its request was sent.
    sent: Moment,
    stage: AloneStage<W, L>,
}

#[derive(Clone, Debug)]
enum AloneStage<W, L> {
    Waiting {
        deadline: Option<Moment>,
        /// `None` after it was woken.
        waker: Option<W>,
        known_fencing: u64,
    },
    Held(Taken<L>),
}

/// What the task took.
#[derive(Clone, Debug)]
pub(super) struct Taken<L> {
    pub(super) lease: L,
    grant: Grant,
    at: Moment,
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
            owner,
            sent: cx.now,
            stage: AloneStage::Waiting {
                deadline,
                waker: waker.take(),
                known_fencing,
            },
        }
    }

    /// What the task has, once it has the lease.
    pub(super) fn held(&self) -> Option<&Taken<L>> {
        match &self.stage {
            AloneStage::Waiting { .. } => None,
            AloneStage::Held(held) => Some(held),
        }
    }

    /// The same, as long as the lease is certain.
    fn certain(&mut self, now: Moment) -> Option<&mut Taken<L>> {
        match &mut self.stage {
            AloneStage::Held(held) if now < held.valid_until => Some(held),
            AloneStage::Waiting { .. } | AloneStage::Held(_) => None,
        }
    }

    pub(super) fn take_waker(&mut self) -> Option<W> {
        match &mut self.stage {
            AloneStage::Waiting { waker, .. } => waker.take(),
            AloneStage::Held(_) => None,
        }
    }

    /// The task polls, and leaves its waker in exchange for the one before. Returns whether it waits.
    pub(super) fn keep_waiting(&mut self, waker: &mut Option<W>) -> bool {
        let AloneStage::Waiting { waker: before, .. } = &mut self.stage else {
            return false;
        };
        mem::swap(before, waker);
        true
    }

    /// The task takes what the reply grants to it, if it grants something and nothing else follows from the reply.
    pub(super) fn take(
        &mut self,
        owner: &O,
        reply: &AcquireReply,
        cx: &mut Transition<'_, W, L, O>,
    ) -> Option<L> {
        let Ok(AcquireOutcome::Granted(grant)) = reply.result else {
            return None;
        };
        let AloneStage::Waiting { waker, .. } = &mut self.stage else {
            return None;
        };
        let ttl = self.terms.ttl;
        let valid_until = validity(self.sent, ttl);
        let granted = Granted {
            grant,
            ttl,
            valid_until,
        };
        let is_plain = !reply.is_astray && !grant.has_more;
        if self.owner != *owner || !is_plain || granted.is_short(cx.now) {
            return None;
        }
        let fencing = { grant.tokens }.take()?;
        if let Some(waker) = waker.take() {
            cx.actions.push(Action::Drop(waker));
        }
        let learned = Action::Learn(self.owner.clone(), grant.tokens.last());
        cx.actions.push(learned);
        let mut renewal = RenewalPlan::of(&self.terms, cx.now);
        renewal.plan_anew(ttl, valid_until, cx);
        let lease = cx.host.new_lease(NewLease {
            id: self.id,
            owner: &self.owner,
            terms: &self.terms,
            fencing,
            permit: grant.permit,
            valid_until,
            is_renewed: !matches!(renewal, RenewalPlan::Off),
            taken_at: cx.now,
        });
        self.stage = AloneStage::Held(Taken {
            lease: lease.clone(),
            grant,
            at: cx.now,
            valid_until,
            renewal,
        });
        Some(lease)
    }

    /// What gives back the lease that the task has, as long as the lease is certain.
    pub(super) fn release(&self, now: Moment) -> Option<ReleaseAction<O>> {
        match &self.stage {
            AloneStage::Held(held) if now < held.valid_until => Some(ReleaseAction {
                owner: self.owner.clone(),
                ttl: self.terms.ttl,
                valid_until: held.valid_until,
                kept_until: None,
                is_queued: false,
            }),
            AloneStage::Waiting { .. } | AloneStage::Held(_) => None,
        }
    }

    /// Sends a renewal that is due. Returns whether nothing else is to be done now: a task has the lease, which has not ended.
    pub(super) fn renew(&mut self, cx: &mut Transition<'_, W, L, O>) -> bool {
        let Some(held) = self.certain(cx.now) else {
            return false;
        };
        let valid_until = held.valid_until;
        if held.renewal.begin_if_due(cx.now) {
            cx.actions.push(Action::Renew {
                owner: self.owner.clone(),
                ttl: self.terms.ttl,
                valid_until,
                tokens: 0,
            });
        }
        true
    }

    /// A connection ended, or began. Returns what `renew` does.
    pub(super) fn reconnected(&mut self, since: Moment, cx: &mut Transition<'_, W, L, O>) -> bool {
        let before = validity(since, self.terms.ttl);
        if let Some(held) = self.certain(cx.now)
            && held.valid_until < before
        {
            held.renewal.hasten(cx.now);
        }
        self.renew(cx)
    }

    /// The server replied to a renewal, or did not reply in time. Returns whether that is all: the lease goes on.
    pub(super) fn renewed(
        &mut self,
        owner: &O,
        reply: &RenewalReply<'_>,
        cx: &mut Transition<'_, W, L, O>,
    ) -> bool {
        let is_plain = self.owner == *owner && reply.tokens == 0;
        let ttl = self.terms.ttl;
        let Some(held) = self.certain(cx.now).filter(|_| is_plain) else {
            return false;
        };
        match reply.result {
            Ok(Renewed::NotOurs) => return false,
            Ok(Renewed::Extended { .. }) => {
                held.renewal.end(cx.now);
                held.valid_until = held.valid_until.max(validity(reply.sent, ttl));
                held.renewal.plan_anew(ttl, held.valid_until, cx);
                cx.actions.push(Action::Extend {
                    lease: held.lease.clone(),
                    valid_until: held.valid_until,
                });
            }
            Err(_) => held.renewal.retry(reply.retry_in, cx),
        }
        true
    }

    /// When something is due next.
    pub(super) fn due(&self) -> Moment {
        match &self.stage {
            AloneStage::Waiting { deadline, .. } => {
                let polled = self.sent.after(POLL_WITHIN);
                deadline.unwrap_or(polled).min(polled)
            }
            AloneStage::Held(held) => held.renewal.due(held.valid_until),
        }
    }

    /// Makes the full state, by the events that made this one.
    pub(super) fn into_full(self, cx: &Transition<'_, W, L, O>) -> FullState<W, L, O> {
        // A task that has the lease waits for nothing.
        let (deadline, mut waker, known_fencing, held) = match self.stage {
            AloneStage::Waiting {
                deadline,
                waker,
                known_fencing,
            } => (deadline, waker, known_fencing, None),
            AloneStage::Held(held) => (None, None, 0, Some(held)),
        };
        let host = Before {
            owner: &self.owner,
            known_fencing,
            lease: held.as_ref().map(|held| &held.lease),
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
            deadline,
            waker: &mut waker,
        };
        full.apply(wait, &mut before);
        if let Some(held) = &held {
            before.now = held.at;
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
                lease.valid_until = held.valid_until;
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::{
        engine::{
            Form, KeyState,
            reply::{Busy, Contended, Expiry, PushedGrant, WakeUpMode},
            terms::{Defaults, HoldBounds, deadline},
            transition::Limits,
        },
        error::LeaseLost,
        failure::Failure,
        fencing::FencingBlock,
        mode::RequestKind,
        options::LockOptions,
    };

    const TTL: Duration = Duration::from_secs(3);
    const TASK: TaskId = TaskId(1);
    const OTHER: TaskId = TaskId(2);
    const OWNER: u64 = 7;

    /// What can happen.
    #[derive(Clone, Copy, Debug)]
    enum What {
        Wait(TaskId, Wait),
        Poll(TaskId, Option<Reply>),
        Acquired(Reply),
        Leave,
        Begin,
        StopRenewing,
        Release(TaskId, u64),
        Lose,
        LoseAll,
        Pushed,
        Contended,
        Renewed(Renewal, u32),
        Reconnected(Duration),
        Disconnected(Duration),
        CloseShares,
        Close,
        Tick,
    }

    #[derive(Clone, Copy, Debug)]
    enum Reply {
        Granted {
            tokens: u32,
            is_astray: bool,
            has_more: bool,
        },
        Busy,
        Undo,
        Failed,
    }

    #[derive(Clone, Copy, Debug)]
    enum Renewal {
        Extended,
        NotOurs,
        Failed,
    }

    const GRANTED: Reply = Reply::Granted {
        tokens: 1,
        is_astray: false,
        has_more: false,
    };

    fn all() -> Vec<What> {
        let granted = |tokens, is_astray, has_more| Reply::Granted {
            tokens,
            is_astray,
            has_more,
        };
        let replies = [
            GRANTED,
            granted(0, false, false),
            granted(2, false, false),
            granted(1, true, false),
            granted(1, false, true),
            Reply::Busy,
            Reply::Undo,
            Reply::Failed,
        ];
        let mut all = vec![
            What::Wait(TASK, Wait::Forever),
            What::Wait(TASK, Wait::For(Duration::from_secs(2))),
            What::Wait(TASK, Wait::No),
            What::Wait(OTHER, Wait::No),
            What::Wait(OTHER, Wait::Forever),
            What::Poll(TASK, None),
            What::Poll(OTHER, None),
            What::Leave,
            What::Begin,
            What::StopRenewing,
            What::Release(TASK, OWNER),
            What::Release(TASK, OWNER + 1),
            What::Release(OTHER, OWNER),
            What::Lose,
            What::LoseAll,
            What::Pushed,
            What::Contended,
            What::Renewed(Renewal::Extended, 0),
            What::Renewed(Renewal::Extended, 2),
            What::Renewed(Renewal::NotOurs, 0),
            What::Renewed(Renewal::Failed, 0),
            What::Reconnected(Duration::ZERO),
            What::Reconnected(TTL * 2),
            What::Disconnected(Duration::ZERO),
            What::CloseShares,
            What::Close,
            What::Tick,
        ];
        all.extend(replies.map(|reply| What::Poll(TASK, Some(reply))));
        all.extend(replies.map(What::Acquired));
        all
    }

    struct Hosting(Cell<u64>);

    impl Host<u64, u64, u64> for Hosting {
        fn new_owner(&self, _: Mode) -> u64 {
            self.0.replace(self.0.get() + 1)
        }

        fn new_lease(&self, taken: NewLease<'_, u64>) -> u64 {
            taken.id.0 * 1_000 + u64::from(taken.fencing)
        }

        fn known_fencing(&self, _: &u64) -> u64 {
            5
        }

        fn jitter(&self, span: Duration) -> Duration {
            span
        }
    }

    fn reply(reply: Reply) -> AcquireReply {
        let (result, is_astray) = match reply {
            Reply::Granted {
                tokens,
                is_astray,
                has_more,
            } => {
                let grant = Grant {
                    has_more,
                    ..FencingBlock::new(10, tokens).into()
                };
                (Ok(AcquireOutcome::Granted(grant)), is_astray)
            }
            Reply::Busy => (Ok(AcquireOutcome::Busy(busy())), false),
            Reply::Undo => (Ok(AcquireOutcome::Undo), false),
            Reply::Failed => (Err(broken()), false),
        };
        AcquireReply {
            is_settled: result.is_ok(),
            result,
            has_not_left: false,
            is_astray,
        }
    }

    fn busy() -> Busy {
        Busy {
            expiry: Expiry::In(TTL / 2),
            position: None,
            wake_up: WakeUpMode::Push,
            is_next: true,
            stamp: Some(8),
            holder: None,
        }
    }

    fn broken() -> Failure {
        Failure::no_reply("the connection broke")
    }

    fn before(now: Moment, ago: Duration) -> Moment {
        let nanos = u64::try_from(ago.as_nanos()).expect("some seconds");
        Moment::from_nanos(now.as_nanos() - nanos)
    }

    /// What an event borrows.
    struct Parts {
        terms: Terms,
        waker: Option<u64>,
        owner: u64,
        renewed: Result<Renewed, Failure>,
    }

    impl Parts {
        fn of(what: What, options: &LockOptions) -> Self {
            let mut options = options.clone();
            let (mut waker, mut owner, mut renewed) = (None, OWNER, Ok(Renewed::NotOurs));
            match what {
                What::Wait(task, wait) => {
                    waker = Some(task.0);
                    options = match wait {
                        Wait::No => options.no_wait(),
                        Wait::For(time) => options.wait(time),
                        Wait::Forever => options.wait_forever(),
                    };
                }
                What::Poll(task, _) => waker = Some(task.0),
                What::Release(_, by) => owner = by,
                What::Renewed(Renewal::Extended, tokens) => {
                    renewed = Ok(Renewed::Extended {
                        tokens: FencingBlock::new(30, tokens),
                        contended: Contended::NoneWaiting,
                    });
                }
                What::Renewed(Renewal::Failed, _) => renewed = Err(broken()),
                _ => {}
            }
            Self {
                terms: Terms::new(&options, Defaults::default()).expect("valid"),
                waker,
                owner,
                renewed,
            }
        }

        fn event(&mut self, what: What, now: Moment) -> Event<'_, u64, u64> {
            match what {
                What::Wait(id, wait) => Event::Wait {
                    id,
                    terms: &self.terms,
                    deadline: deadline(wait, now),
                    waker: &mut self.waker,
                },
                What::Poll(id, replied) => Event::Poll {
                    id,
                    waker: &mut self.waker,
                    reply: replied.map(|replied| (&self.owner, reply(replied))),
                },
                What::Acquired(replied) => Event::Acquired(&self.owner, reply(replied)),
                What::Leave => Event::Leave(TASK),
                What::Begin => {
                    let bounds = HoldBounds {
                        held_until: Some(now.after(TTL / 3)),
                        kept_until: None,
                    };
                    Event::Begin(TASK, bounds)
                }
                What::StopRenewing => Event::StopRenewing(TASK),
                What::Release(id, _) => Event::Release(id, &self.owner),
                What::Lose => Event::Lose(TASK, LeaseLost::TakenAway),
                What::LoseAll => Event::LoseAll(LeaseLost::Shutdown),
                What::Pushed => {
                    let pushed = PushedGrant {
                        grant: FencingBlock::new(20, 1).into(),
                        stamp: 20,
                    };
                    Event::Pushed(&self.owner, pushed)
                }
                What::Contended => Event::Contended(&self.owner),
                What::Renewed(_, tokens) => {
                    let reply = RenewalReply {
                        sent: now,
                        tokens,
                        result: &self.renewed,
                        retry_in: Duration::from_millis(200),
                    };
                    Event::Renewed(&self.owner, reply)
                }
                What::Reconnected(ago) => Event::Reconnected(before(now, ago)),
                What::Disconnected(ago) => Event::Disconnected(before(now, ago)),
                What::CloseShares => Event::CloseShares,
                What::Close => Event::Close,
                What::Tick => Event::Tick,
            }
        }
    }

    /// A key in both forms.
    #[derive(Clone)]
    struct Both {
        short: KeyState<u64, u64, u64>,
        full: FullState<u64, u64, u64>,
        next_owner: u64,
        now: Moment,
        options: LockOptions,
    }

    impl Both {
        /// A key of which nothing is known, which tasks take with these options.
        fn of(options: LockOptions, kind: RequestKind) -> Self {
            Self {
                short: KeyState::new(kind),
                full: FullState::new(kind),
                next_owner: OWNER,
                now: Moment::from_nanos(1_000_000_000_000),
                options,
            }
        }

        /// Applies an event to both, and compares what comes of it. The full state sets no timers.
        fn apply(&mut self, what: What, before: &[(What, Duration)]) {
            let parts = || Parts::of(what, &self.options);
            let (mut ours, mut theirs) = (parts(), parts());
            let host = Hosting(Cell::new(self.next_owner));
            let (short, after) = self.transition(&host, |both, cx| {
                let outcome = both.short.apply(ours.event(what, cx.now), cx);
                cx.actions.retain(|one| !matches!(one, Action::Arm(_)));
                (
                    format!("{outcome:?} {:?}", cx.actions),
                    both.short.to_full(cx),
                )
            });
            let other_host = Hosting(Cell::new(self.next_owner));
            let full = self.transition(&other_host, |both, cx| {
                let outcome = both.full.apply(theirs.event(what, cx.now), cx);
                format!("{outcome:?} {:?}", cx.actions)
            });
            assert_eq!(short, full, "{what:?} after {before:?}");
            let (short, full) = (format!("{after:?}"), format!("{:?}", self.full));
            assert_eq!(short, full, "the state by {what:?} after {before:?}");
            assert_eq!(ours.waker, theirs.waker, "{what:?} after {before:?}");
            let due = (self.short.due(), self.full.due());
            assert_eq!(due.0, due.1, "{what:?} after {before:?}");
            self.next_owner = host.0.get();
        }

        fn transition<T>(
            &mut self,
            host: &Hosting,
            apply: impl FnOnce(&mut Self, &mut Transition<'_, u64, u64, u64>) -> T,
        ) -> T {
            let mut cx = Transition {
                now: self.now,
                limits: Limits::default(),
                polling_pause: Duration::from_millis(50),
                host,
                actions: Vec::new(),
            };
            apply(self, &mut cx)
        }
    }

    /// Follows all sequences of so many more events, as long as the form is a short one. Returns how many events were applied to it.
    fn follow(both: &Both, before: &mut Vec<(What, Duration)>, more: usize) -> usize {
        if more == 0 || matches!(both.short.form, Form::Full(_)) {
            return 0;
        }
        let mut applied = 0;
        for what in all() {
            for later in [Duration::ZERO, Duration::from_millis(1200), TTL] {
                let mut next = both.clone();
                next.now = both.now.after(later);
                next.apply(what, before);
                before.push((what, later));
                applied += 1 + follow(&next, before, more - 1);
                before.pop();
            }
        }
        applied
    }

    #[test]
    fn the_short_form_means_what_the_full_state_means() {
        let renewed = LockOptions::new(TTL);
        for options in [renewed.clone(), renewed.without_renewal()] {
            let start = Both::of(options, RequestKind::Exclusive);
            let mut applied = follow(&start, &mut Vec::new(), 1);
            for wait in [Wait::Forever, Wait::For(Duration::from_secs(2)), Wait::No] {
                let (mut both, mut before) = (start.clone(), Vec::new());
                for what in [What::Wait(TASK, wait), What::Poll(TASK, Some(GRANTED))] {
                    both.apply(what, &before);
                    before.push((what, Duration::ZERO));
                    applied += follow(&both, &mut before, 2);
                }
            }
            assert!(applied > 5_000, "only {applied} events met a short form");
        }
    }
}
