//! The value of the state machine, which is everything that the process knows about a key: the wait queue, the request to
//! the server, the server leases, and their holders. `acquiring.rs`, `granting.rs`, `holding.rs` and `sharing.rs` have the
//! transitions.
//!
//! A process may hold 100,000 keys for hours, and most of them have no waiter. Therefore the fields that only waiters need
//! are on the heap, and exist only while there are waiters.

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
pub(crate) struct KeyState<W, L, O> {
    pub(super) kind: RequestKind,
    /// The leases that the server granted to this process.
    pub(super) leases: Vec<ServerLease<W, L, O>>,
    /// Allocated by [`Self::waiting_mut`], and freed after an event that leaves it empty.
    pub(super) waiting: Option<Box<Waiting<W, O>>>,
    /// The time of the timer that was armed last, unless it has fired.
    pub(super) armed: Option<Moment>,
}

/// The part of the state that exists only while tasks wait, or have not read their refusals.
#[derive(Clone, Debug)]
pub(super) struct Waiting<W, O> {
    pub(super) queue: WaitQueue<W>,
    /// The request to the server for the first waiter.
    pub(super) request: Option<AcquireRequest<O>>,
    /// Set if the lock was returned to the server for processes that poll: no request is sent for waiters before this
    /// moment.
    pub(super) acquires_from: Option<Moment>,
    /// The refusals for tasks that have not polled since their wait ended.
    pub(super) refused: BTreeMap<TaskId, Refusal>,
}

impl<W, O> Default for Waiting<W, O> {
    fn default() -> Self {
        Self {
            queue: WaitQueue::default(),
            request: None,
            acquires_from: None,
            refused: BTreeMap::new(),
        }
    }
}

impl<W, O> Waiting<W, O> {
    fn is_empty(&self) -> bool {
        self.request.is_none() && self.queue.is_empty() && self.refused.is_empty()
    }
}

impl<W, L, O> KeyState<W, L, O>
where
    L: Clone,
    O: Clone + PartialEq,
{
    pub(crate) fn new(kind: RequestKind) -> Self {
        Self {
            kind,
            leases: Vec::new(),
            waiting: None,
            armed: None,
        }
    }

    /// Applies an event, sends or ends the request if that is due, and arms the timer.
    pub(crate) fn apply(
        &mut self,
        event: Event<'_, W, O>,
        cx: &mut Transition<'_, W, L, O>,
    ) -> Outcome<L, O> {
        if matches!(event, Event::Tick) {
            self.armed = None;
        }
        let outcome = self.react(event, cx);
        drop(self.waiting.take_if(|waiting| waiting.is_empty()));
        if let Some(due) = self.due()
            && self.armed.is_none_or(|armed| due < armed)
        {
            self.armed = Some(due);
            cx.actions.push(Action::Arm(due));
        }
        outcome
    }

    fn react(&mut self, event: Event<'_, W, O>, cx: &mut Transition<'_, W, L, O>) -> Outcome<L, O> {
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
                    // The task is being polled, so it must not be woken for the result of this reply.
                    self.drop_waker(id, cx);
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
        // A task that has its result does not poll a request.
        self.continue_request(polling.filter(|_| matches!(outcome, Outcome::Pending)), cx);
        outcome
    }

    /// Returns `true` if the state is empty, so that the registry can remove it.
    pub(crate) fn is_over(&self) -> bool {
        self.leases.is_empty() && self.waiting.is_none()
    }

    pub(super) fn waiting_mut(&mut self) -> &mut Waiting<W, O> {
        self.waiting.get_or_insert_default()
    }

    pub(super) fn request(&self) -> Option<&AcquireRequest<O>> {
        self.waiting.as_ref()?.request.as_ref()
    }

    pub(super) fn request_mut(&mut self) -> Option<&mut AcquireRequest<O>> {
        self.waiting.as_mut()?.request.as_mut()
    }

    /// Returns the next waiter to be served: the first one that polls when it is woken.
    pub(super) fn head(&self) -> Option<(TaskId, &LocalWaiter<W>)> {
        self.waiting.as_ref()?.queue.head()
    }

    pub(super) fn remove_waiter(&mut self, id: TaskId) -> Option<Box<LocalWaiter<W>>> {
        self.waiting.as_mut()?.queue.remove(id)
    }

    pub(crate) fn waiters(&self) -> usize {
        let waiting = self.waiting.as_ref();
        waiting.map_or(0, |waiting| waiting.queue.length())
    }

    /// Takes the wakers of all waiters, to make them poll.
    pub(crate) fn take_wakers(&mut self) -> Vec<W> {
        let waiting = self.waiting.as_mut();
        waiting.map_or_else(Vec::new, |waiting| waiting.queue.take_wakers())
    }

    #[cfg(feature = "testing")]
    pub(crate) fn is_held(&self) -> bool {
        self.ends().next().is_some()
    }

    /// Returns when each lease that tasks hold ends, unless it is renewed.
    pub(crate) fn ends(&self) -> impl Iterator<Item = Moment> {
        let held = self.leases.iter().filter(|held| !held.holders.is_empty());
        held.map(|held| held.valid_until)
    }

    /// Returns `true` if a task that may not wait is refused without a request, because another task holds the lock alone,
    /// or waits ahead of it. A request for which no task waits any more does not count.
    ///
    /// If the mode is not exclusive, the lock may admit both tasks, or there may be a result for both. So until the first
    /// reply arrives, the task waits for it in the queue of this process, without an entry in the server's queue.
    fn is_occupied(&self) -> bool {
        let is_held = self.kind.is_alone() && !self.leases.is_empty();
        if self.kind == RequestKind::Exclusive {
            return is_held || self.waiters() > 0;
        }
        let is_unanswered = |request: &AcquireRequest<O>| !request.has_reply();
        is_held || self.waiters() > 0 && !self.request().is_some_and(is_unanswered)
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
            return Outcome::Acquired(lease);
        }
        if terms.wait == Wait::No && self.is_occupied() {
            return Outcome::Refused(self.refusal(terms.ttl, cx.now));
        }
        let waiter = LocalWaiter {
            terms: *terms,
            deadline,
            waker: waker.take(),
        };
        self.waiting_mut().queue.insert(id, Box::new(waiter));
        Outcome::Pending
    }

    /// Lets a task join an open share without waiting. Returns `None` if no share is open, or if other tasks wait ahead of
    /// this one.
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
        if self.waiters() > 0 {
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
        let waiting = self.waiting.as_mut();
        if let Some(refusal) = waiting.and_then(|waiting| waiting.refused.remove(&id)) {
            return Outcome::Refused(refusal);
        }
        if let Some(lease) = self.accept_grant(id, cx) {
            return Outcome::Acquired(lease);
        }
        self.expire(cx);
        if let Some(waiting) = &mut self.waiting {
            if let Some(waiter) = waiting.queue.get_mut(id) {
                mem::swap(&mut waiter.waker, waker);
            }
            waiting.queue.mark_awake(id);
        }
        Outcome::Pending
    }

    pub(super) fn drop_waker(&mut self, id: TaskId, cx: &mut Transition<'_, W, L, O>) {
        if let Some(waiting) = &mut self.waiting
            && let Some(waiter) = waiting.queue.get_mut(id)
        {
            cx.actions.extend(waiter.waker.take().map(Action::Drop));
        }
    }

    pub(super) fn leave(&mut self, id: TaskId, cx: &mut Transition<'_, W, L, O>) {
        if let Some(waiting) = &mut self.waiting {
            waiting.refused.remove(&id);
        }
        if let Some(waiter) = self.remove_waiter(id) {
            cx.actions.extend(waiter.waker.map(Action::Drop));
        }
        if let Some(request) = self.request_mut() {
            request.is_no_longer_polled_by(id);
        }
        if let Some((at, waiter)) = self.withdraw_grant(id) {
            cx.actions.extend(waiter.waker.map(Action::Drop));
            self.continue_without_holder(at, None, cx);
        }
    }

    pub(super) fn reconnected(&mut self, since: Moment, cx: &mut Transition<'_, W, L, O>) {
        if let Some(request) = self.request_mut() {
            // After an outage, all processes reconnect at about the same time. The jitter spreads their requests.
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
                self.continue_without_holder(at, None, cx);
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
        if let Some(request) = self.request_mut()
            && request.stop_waiting_for_poll(cx.now)
        {
            cx.actions.push(Action::FinishRequest);
        }
    }

    /// Returns when something is due next.
    pub(super) fn due(&self) -> Option<Moment> {
        let of_waiting = self.waiting.as_ref().and_then(|waiting| {
            let request = waiting.request.as_ref().and_then(AcquireRequest::due);
            let asks = waiting.acquires_from.filter(|_| self.is_about_to_acquire());
            let all = [waiting.queue.first_deadline(), request, asks];
            all.into_iter().flatten().min()
        });
        let leases = self.leases.iter().map(ServerLease::due);
        of_waiting.into_iter().chain(leases).min()
    }

    /// Returns the leases of the tasks that hold the lock.
    pub(crate) fn each_lease(&self) -> impl Iterator<Item = &L> {
        self.leases.iter().flat_map(ServerLease::leases)
    }

    /// Sends the request if a task waits for its reply and nothing is in flight. Ends a request for which no task waits.
    pub(super) fn continue_request(
        &mut self,
        polling: Option<TaskId>,
        cx: &mut Transition<'_, W, L, O>,
    ) {
        match self.request() {
            None => {
                self.admit_waiters(cx);
                if self.is_about_to_acquire() && self.may_acquire(cx.now) {
                    self.acquire(polling, cx);
                }
            }
            Some(AcquireRequest {
                step: RequestStep::Waiting { until, .. },
                ..
            }) => {
                if self.head().is_none() {
                    self.end_request(cx);
                } else if *until <= cx.now {
                    self.acquire(polling, cx);
                }
            }
            Some(_) => {}
        }
    }

    /// Returns `true` if a waiter needs a request to the server, and there is none yet.
    fn is_about_to_acquire(&self) -> bool {
        let is_in_the_way = self.kind.is_alone() && !self.leases.is_empty();
        self.request().is_none() && self.head().is_some() && !is_in_the_way
    }

    /// Returns `true` if processes that poll have had enough time to take the lock, or if the next task may not wait.
    fn may_acquire(&self, now: Moment) -> bool {
        let acquires_from = self
            .waiting
            .as_ref()
            .and_then(|waiting| waiting.acquires_from);
        let does_not_wait = |(_, head): (_, &LocalWaiter<W>)| head.terms.wait == Wait::No;
        acquires_from.is_none_or(|from| from <= now) || self.head().is_some_and(does_not_wait)
    }
}
