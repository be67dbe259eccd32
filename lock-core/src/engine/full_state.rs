//! All that the process knows of a key: the wait queue, the request to the server, the server leases, and their holders. The transitions
//! stand in `acquiring.rs`, `granting.rs`, `holding.rs` and `sharing.rs`.

use std::{collections::BTreeMap, mem};

use crate::{
    engine::{
        event::{Event, Outcome},
        request::{AcquireRequest, RequestStep},
        server_lease::ServerLease,
        terms::Terms,
        transition::{Action, Refusal, TaskId, Transition},
        wait_queue::{LocalWaiter, WaitQueue},
    },
    mode::RequestKind,
    moment::Moment,
    options::Wait,
};

#[derive(Clone, Debug)]
pub(crate) struct FullState<W, L, O> {
    pub(super) kind: RequestKind,
    pub(crate) queue: WaitQueue<W>,
    /// What is asked of the server for the first waiter.
    pub(crate) request: Option<AcquireRequest<O>>,
    /// What the server gave.
    pub(crate) leases: Vec<ServerLease<W, L, O>>,
    /// The lock was given back for processes that poll: waiters do not ask the server before this moment.
    pub(super) asks_from: Option<Moment>,
    /// The refusals for tasks that have not polled since their wait ended.
    pub(super) refused: BTreeMap<TaskId, Refusal>,
}

impl<W, L, O> FullState<W, L, O>
where
    L: Clone,
    O: Clone + PartialEq,
{
    pub(crate) fn new(kind: RequestKind) -> Self {
        Self {
            kind,
            queue: WaitQueue::default(),
            request: None,
            leases: Vec::new(),
            asks_from: None,
            refused: BTreeMap::new(),
        }
    }

    /// Makes the transition of an event. What comes due by it is done.
    pub(crate) fn apply(
        &mut self,
        event: Event<'_, W, O>,
        cx: &mut Transition<'_, W, L, O>,
    ) -> Outcome<L, O> {
        let mut polling = None;
        let mut outcome = Outcome::Pending;
        match event {
            Event::Wait {
                id,
                terms,
                deadline,
                waker,
            } => {
                polling = Some(id);
                outcome = self.wait(id, terms, deadline, waker, cx);
            }
            Event::Poll { id, waker, reply } => {
                polling = Some(id);
                if let Some((owner, reply)) = reply {
                    // The task is being polled, and needs no wake-up for the result of this reply.
                    self.take_waker(id, cx);
                    self.acquired(owner, reply, cx);
                }
                outcome = self.poll(id, waker, cx);
            }
            Event::Leave(id) => self.leave(id, cx),
            Event::Begin(id, bounds) => self.begin(id, bounds),
            Event::StopRenewing(id) => self.stop_renewing(id, cx.now),
            Event::Release(id, owner) => outcome = Outcome::Released(self.release(id, owner, cx)),
            Event::Lose(id, reason) => self.lose(id, reason, cx),
            Event::LoseAll(reason) => self.lose_all(reason, cx),
            Event::Acquired(owner, reply) => self.acquired(owner, reply, cx),
            Event::Pushed(owner, grant) => self.pushed(owner, grant, cx),
            Event::Contended(owner) => self.contended(owner, cx),
            Event::Renewed(owner, reply) => self.renewed(owner, &reply, cx),
            Event::Reconnected(since) => self.reconnected(since, cx),
            Event::Disconnected(since) => self.disconnected(since, cx),
            Event::CloseShares => self.close_shares(cx),
            Event::Close => self.close(cx),
            Event::Tick => self.progress(cx),
        }
        // A task that has its result polls no request.
        self.go_on(polling.filter(|_| matches!(outcome, Outcome::Pending)), cx);
        outcome
    }

    /// Whether nothing is left to do.
    pub(crate) fn is_over(&self) -> bool {
        self.request.is_none()
            && self.leases.is_empty()
            && self.queue.is_empty()
            && self.refused.is_empty()
    }

    /// Whether it is as if nothing had happened. A state that is over may still keep the next task from asking.
    pub(super) fn is_new(&self) -> bool {
        self.is_over() && self.asks_from.is_none()
    }

    /// When each lease that tasks hold ends, unless it is renewed.
    pub(crate) fn ends(&self) -> impl Iterator<Item = Moment> {
        let held = self.leases.iter().filter(|held| !held.holders.is_empty());
        held.map(|held| held.valid_until)
    }

    /// Whether a task that does not wait is refused without a request: another task holds the lock alone, or waits before it. A
    /// request that no task waits for any more does not count.
    ///
    /// In the other modes the lock may have room for both tasks, or there is a result for both. So while the first reply is awaited, the task joins the queue of
    /// this process, for that reply. In the server's queue it has no entry.
    fn is_taken(&self) -> bool {
        let is_held = self.kind.is_alone() && !self.leases.is_empty();
        if self.kind == RequestKind::Exclusive {
            return is_held || !self.queue.is_empty();
        }
        let is_unanswered = |request: &AcquireRequest<O>| !request.has_reply();
        is_held || !self.queue.is_empty() && !self.request.as_ref().is_some_and(is_unanswered)
    }

    pub(super) fn wait(
        &mut self,
        id: TaskId,
        terms: &Terms,
        deadline: Option<Moment>,
        waker: &mut Option<W>,
        cx: &mut Transition<'_, W, L, O>,
    ) -> Outcome<L, O> {
        if let Some(lease) = self.join_share(id, terms, cx) {
            return Outcome::Taken(lease);
        }
        if terms.wait == Wait::No && self.is_taken() {
            return Outcome::Refused(self.refusal(terms.ttl, cx.now));
        }
        let waiter = LocalWaiter {
            terms: *terms,
            deadline,
            waker: waker.take(),
        };
        self.queue.insert(id, Box::new(waiter));
        Outcome::Pending
    }

    /// A task takes an open share, without waiting. `None`: no share is open, or other tasks wait before this one.
    fn join_share(
        &mut self,
        id: TaskId,
        terms: &Terms,
        cx: &mut Transition<'_, W, L, O>,
    ) -> Option<L> {
        if self.kind != RequestKind::Shared {
            return None;
        }
        self.expire(cx);
        if !self.queue.is_empty() {
            return None;
        }
        let at = self.open_share(terms, cx)?;
        self.leases[at].join(id, terms, cx)
    }

    pub(super) fn poll(
        &mut self,
        id: TaskId,
        waker: &mut Option<W>,
        cx: &mut Transition<'_, W, L, O>,
    ) -> Outcome<L, O> {
        if let Some(refusal) = self.refused.remove(&id) {
            return Outcome::Refused(refusal);
        }
        if let Some(taken) = self.take_grant(id, cx) {
            return Outcome::Taken(taken);
        }
        self.expire(cx);
        if let Some(waiter) = self.queue.get_mut(id) {
            mem::swap(&mut waiter.waker, waker);
        }
        self.queue.mark_awake(id);
        Outcome::Pending
    }

    pub(super) fn take_waker(&mut self, id: TaskId, cx: &mut Transition<'_, W, L, O>) {
        let waker = self
            .queue
            .get_mut(id)
            .and_then(|waiter| waiter.waker.take());
        cx.actions.extend(waker.map(Action::Drop));
    }

    pub(super) fn leave(&mut self, id: TaskId, cx: &mut Transition<'_, W, L, O>) {
        self.refused.remove(&id);
        if let Some(waiter) = self.queue.remove(id) {
            cx.actions.extend(waiter.waker.map(Action::Drop));
        }
        if let Some(request) = &mut self.request {
            request.is_no_longer_polled_by(id);
        }
        if let Some((at, waiter)) = self.withdraw_grant(id) {
            cx.actions.extend(waiter.waker.map(Action::Drop));
            self.go_on_without_holder(at, None, cx);
        }
    }

    pub(super) fn reconnected(&mut self, since: Moment, cx: &mut Transition<'_, W, L, O>) {
        if let Some(request) = &mut self.request {
            // After an outage the waiters of all processes get their messages at about the same time.
            let spread = cx.polling_pause.saturating_mul(request.failures.min(10));
            request.reconnected(cx.now.after(cx.host.jitter(spread)));
        }
        self.disconnected(since, cx);
    }

    pub(super) fn disconnected(&mut self, since: Moment, cx: &mut Transition<'_, W, L, O>) {
        for held in &mut self.leases {
            held.renew_if_older_than(since, cx.now);
        }
        self.progress(cx);
    }

    pub(super) fn close(&mut self, cx: &mut Transition<'_, W, L, O>) {
        self.refuse_those(|_| true, &Refusal::Closed, cx);
        for id in self.granted_tasks() {
            if let Some((at, waiter)) = self.withdraw_grant(id) {
                self.refuse_all([(id, waiter)], &Refusal::Closed, cx);
                self.go_on_without_holder(at, None, cx);
            }
        }
        self.close_shares(cx);
    }

    /// Does everything that is due.
    pub(super) fn progress(&mut self, cx: &mut Transition<'_, W, L, O>) {
        self.expire(cx);
        self.end_waits(cx);
        self.release_unused(cx);
        for held in &mut self.leases {
            cx.actions.extend(held.renew_if_due(cx.now));
        }
        if let Some(request) = &mut self.request
            && request.stop_waiting_for_poll(cx.now)
        {
            cx.actions.push(Action::TakeOverRequest);
        }
    }

    /// When something is due next.
    pub(super) fn due(&self) -> Option<Moment> {
        let request = self.request.as_ref().and_then(AcquireRequest::due);
        let asks = self.asks_from.filter(|_| self.is_about_to_ask());
        let others = [self.queue.first_deadline(), request, asks];
        let leases = self.leases.iter().map(ServerLease::due);
        others.into_iter().flatten().chain(leases).min()
    }

    pub(super) fn each_lease(&self) -> impl Iterator<Item = &L> {
        self.leases.iter().flat_map(ServerLease::leases)
    }

    /// Asks the server, if a task waits for its reply and nothing is in flight. Ends a request that no task waits for.
    pub(super) fn go_on(&mut self, polling: Option<TaskId>, cx: &mut Transition<'_, W, L, O>) {
        match &self.request {
            None => {
                self.admit_waiters(cx);
                let is_time = self.asks_from.is_none_or(|from| from <= cx.now)
                    || self
                        .queue
                        .head()
                        .is_some_and(|(_, head)| head.terms.wait == Wait::No);
                if self.is_about_to_ask() && is_time {
                    self.asks_from = None;
                    self.ask(polling, cx);
                }
            }
            Some(AcquireRequest {
                step: RequestStep::Waiting { until, .. },
                ..
            }) => {
                if !self.queue.has_head() {
                    self.end_request(cx);
                } else if *until <= cx.now {
                    self.ask(polling, cx);
                }
            }
            Some(_) => {}
        }
    }

    /// Whether there is a waiter for which the server must be asked, and no request yet.
    fn is_about_to_ask(&self) -> bool {
        let is_in_the_way = self.kind.is_alone() && !self.leases.is_empty();
        self.request.is_none() && self.queue.has_head() && !is_in_the_way
    }
}
