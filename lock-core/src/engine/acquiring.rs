//! The transitions of an acquire, from the first waiter of a key to a grant.
//!
//! The server's queue has one entry for all waiters of this process, and a message with the grant ends the wait. But the
//! message can be lost, the holder can die, and the lock may be held by another library, which sends no messages. Therefore
//! the server is also asked when the holder's lease must have ended, after each new connection, and once a second.

use std::time::Duration;

use crate::{
    engine::{
        key_state::KeyState,
        reply::{AcquireOutcome, Busy, Expiry, PushedGrant, QueueMode, WakeUpMode},
        request::{
            AcquireReply, AcquireRequest, MOST_LATE_GRANTS, Meanwhile, RequestStep, Rivals,
            WakeUps, checking_pause,
        },
        server_lease::{Granted, ServerLease, validity},
        transition::{AcquireAction, Action, BLOCK, Refusal, TaskId, Transition},
    },
    failure::Failure,
    mode::{Mode, RequestKind},
    moment::Moment,
    options::Wait,
};

/// The longest pause between two requests while the server is unavailable.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

impl<W, L, O> KeyState<W, L, O>
where
    L: Clone,
    O: Clone + PartialEq,
{
    pub(super) fn acquired(
        &mut self,
        owner: &O,
        reply: AcquireReply,
        cx: &mut Transition<'_, W, L, O>,
    ) {
        if let Some(request) = self.request_mut()
            && request.owner == *owner
            && let RequestStep::InFlight {
                sent,
                ttl,
                queue_mode,
                before,
                answers_up_to,
                ..
            } = request.step
        {
            request.wait_until(cx.now);
            request.is_astray = reply.is_astray;
            match reply.result {
                Err(failure) => {
                    if failure.is_definite() || reply.has_not_left {
                        (request.may_hold, request.queue_mode) = before;
                    }
                    self.failed(failure, cx);
                }
                Ok(outcome) => {
                    request.may_hold &= !reply.is_settled;
                    request.failures = 0;
                    match outcome {
                        AcquireOutcome::Granted(grant) => {
                            request.may_hold = true;
                            let granted = Granted {
                                grant,
                                ttl,
                                valid_until: validity(sent, ttl),
                            };
                            request.count_late_grants(granted.is_short(cx.now));
                            if request.late_grants >= MOST_LATE_GRANTS {
                                // Waiters with a longer ttl get three new tries.
                                request.late_grants = 0;
                                self.refuse_as_too_slow(cx.now.since(sent), ttl, cx);
                            }
                            self.granted(granted, cx);
                        }
                        AcquireOutcome::Done(result) => {
                            let joined = self.waiting_mut().queue.remove_up_to(answers_up_to);
                            self.refuse_all(joined, &Refusal::Done(result), cx);
                        }
                        AcquireOutcome::Busy(busy) => {
                            self.busy(&busy, sent, ttl, queue_mode, cx);
                        }
                        AcquireOutcome::Undo => self.begin_anew(cx),
                    }
                }
            }
        }
    }

    pub(super) fn pushed(
        &mut self,
        owner: &O,
        pushed: PushedGrant,
        cx: &mut Transition<'_, W, L, O>,
    ) {
        if let Some(request) = self.request_mut()
            && request.owner == *owner
        {
            if let RequestStep::Waiting { .. } = request.step {
                self.accept(pushed, cx);
            } else {
                request.meanwhile = Meanwhile::Granted(pushed);
            }
        }
    }

    pub(super) fn acquire(&mut self, polling: Option<TaskId>, cx: &mut Transition<'_, W, L, O>) {
        let Some(waiting) = &mut self.waiting else {
            return;
        };
        let Some((_, head)) = waiting.queue.head() else {
            return;
        };
        let terms = head.terms;
        let waits_for_one = self.kind != RequestKind::Exclusive || waiting.queue.length() == 1;
        let host = cx.host;
        let new = || AcquireRequest::new(host.new_owner(terms.mode), terms.mode);
        let answers_up_to = (self.kind == RequestKind::Once)
            .then(|| waiting.queue.iter().map(|(id, _)| id).max())
            .flatten();
        waiting.acquires_from = None;
        let request = waiting.request.get_or_insert_with(new);
        // A copy of an earlier request with a longer ttl may still block others for that ttl, and an owner token is used in
        // one mode only.
        if request.ttl > terms.ttl || request.mode != terms.mode {
            let other = std::mem::replace(request, new());
            cx.actions.extend(other.give_up(cx.now));
        }
        let queue_mode = match (request.queue_mode, terms.wait) {
            (QueueMode::CheckPosition(position), _) => QueueMode::CheckPosition(position),
            (_, Wait::No) => QueueMode::DoNotQueue,
            (_, Wait::For(_) | Wait::Forever) => QueueMode::JoinQueue,
        };
        let before = (request.may_hold, request.queue_mode);
        let known_fencing = host.known_fencing(&request.owner);
        if queue_mode == QueueMode::JoinQueue {
            // Only the first request that may queue adds an entry without searching the queue for it.
            request.queue_mode = QueueMode::CheckPosition(None);
            request.waits_since = cx.now;
            request.known_since = known_fencing;
        }
        // In the other modes, a holder is stored under the same entry, which contains the ttl.
        if queue_mode == QueueMode::JoinQueue || !terms.mode.is_alone() {
            request.queued_ttl.get_or_insert(terms.ttl);
        }
        // Set before the first byte is sent, because any copy that is sent may be executed.
        request.may_hold = true;
        request.ttl = terms.ttl;
        request.step = RequestStep::InFlight {
            sent: cx.now,
            ttl: terms.ttl,
            queue_mode,
            before,
            answers_up_to,
            polled_by: polling,
        };
        cx.actions.push(Action::Acquire(AcquireAction {
            owner: request.owner.clone(),
            ttl: terms.ttl,
            // More tokens are useful only if another task waits for this lease.
            tokens: if waits_for_one { 1 } else { BLOCK },
            queue_mode,
            queued_ttl: request.queued_ttl,
            known_fencing,
            polled_by: polling,
        }));
    }

    pub(super) fn end_request(&mut self, cx: &mut Transition<'_, W, L, O>) {
        let waiting = self.waiting.as_mut();
        if let Some(request) = waiting.and_then(|waiting| waiting.request.take()) {
            cx.actions.extend(request.give_up(cx.now));
        }
    }

    /// Gives up the owner token, which must not be used again, and replaces it with a new one.
    fn begin_anew(&mut self, cx: &mut Transition<'_, W, L, O>) {
        if let Some(request) = self.request_mut() {
            request.may_hold = true;
            let next = AcquireRequest::new(cx.host.new_owner(request.mode), request.mode);
            let given_up = std::mem::replace(request, next);
            request.rivals = given_up.rivals;
            request.last_reply.clone_from(&given_up.last_reply);
            cx.actions.extend(given_up.give_up(cx.now));
        }
    }

    fn busy(
        &mut self,
        busy: &Busy,
        sent: Moment,
        ttl: Duration,
        asked: QueueMode,
        cx: &mut Transition<'_, W, L, O>,
    ) {
        if busy.needs_new_token() {
            // Happens at once, because two processes that each have the key on some of the servers would otherwise block
            // each other.
            self.begin_anew(cx);
        }
        let Some(request) = self.request_mut() else {
            return;
        };
        let is_queued = busy.wake_up == WakeUpMode::Push && asked != QueueMode::DoNotQueue;
        request.rivals = request.rivals.max(if is_queued {
            Rivals::Queue
        } else {
            Rivals::Holder
        });
        if !busy.needs_new_token() && asked != QueueMode::DoNotQueue {
            request.may_hold = true;
            request.queue_mode = QueueMode::CheckPosition(busy.position);
            if let Some(stamp) = busy.stamp {
                // The server has confirmed that the entry is in the queue. The message of an earlier grant may still be in
                // flight, or may have arrived while the request was in flight. Its stamp shows that the grant is an earlier
                // one.
                request.waits_since = sent;
                request.known_since = request.known_since.max(stamp);
            }
        }
        let refusal = Refusal::Busy {
            until: match busy.expiry {
                Expiry::In(left) => Some(cx.now.after(left)),
                Expiry::Never => None,
                Expiry::Unknown => Some(cx.now.after(ttl)),
            },
            holder: busy.holder.clone(),
        };
        request.last_reply = Some(refusal.clone());
        let meanwhile = std::mem::take(&mut request.meanwhile);
        let pause = if meanwhile == Meanwhile::Reconnected {
            Duration::ZERO
        } else {
            checking_pause(busy, asked == QueueMode::JoinQueue, cx)
        };
        let asked_for = request.mode;
        request.wait_until(cx.now.after(pause));
        match asked_for {
            // A request without an entry in the queue was refused because of its own number of permits. A request with a
            // larger number may be granted.
            Mode::Permits(permits) if asked == QueueMode::DoNotQueue => {
                self.refuse_impatient_for(permits, &refusal, cx);
            }
            _ => self.refuse_impatient(&refusal, cx),
        }
        self.accept_meanwhile(meanwhile, cx);
    }

    fn failed(&mut self, failure: Failure, cx: &mut Transition<'_, W, L, O>) {
        let Some(request) = self.request_mut() else {
            return;
        };
        if !failure.is_transient() {
            return self.refuse_those(|_| true, &Refusal::Failed(failure), cx);
        }
        request.failures += 1;
        // After a lost vote, the servers are available. If the pause grew, a waiter that has lost often would lose to those
        // that arrived later.
        let most = match failure {
            Failure::LostVote(_) => 1,
            _ => 6,
        };
        let doubled = 2_u32.pow(request.failures.min(most));
        let pause = cx.polling_pause.saturating_mul(doubled).min(LONGEST_PAUSE);
        let meanwhile = std::mem::take(&mut request.meanwhile);
        let pause = if meanwhile == Meanwhile::Reconnected && !failure.is_definite() {
            Duration::ZERO
        } else {
            cx.host.jitter(pause)
        };
        request.step = RequestStep::Waiting {
            until: cx.now.after(pause),
            wake_ups: if failure.is_definite() {
                WakeUps::GrantsOnly
            } else {
                WakeUps::GrantsAndConnections
            },
        };
        let refusal = Refusal::Failed(failure);
        request.last_reply = Some(refusal.clone());
        self.refuse_impatient(&refusal, cx);
        self.accept_meanwhile(meanwhile, cx);
    }

    /// Accepts a grant that arrived by a message while a request was in flight.
    fn accept_meanwhile(&mut self, meanwhile: Meanwhile, cx: &mut Transition<'_, W, L, O>) {
        if let Meanwhile::Granted(pushed) = meanwhile
            && self.head().is_some()
        {
            self.accept(pushed, cx);
        }
    }

    /// Accepts a grant that arrives by a message while nothing is in flight.
    ///
    /// If its stamp is larger than `known_since`, the grant is newer than the last "wait" reply. Its lease counts from
    /// when that request was sent, so it may seem older than it is, in which case the lock is requested again.
    fn accept(&mut self, pushed: PushedGrant, cx: &mut Transition<'_, W, L, O>) {
        let Some(request) = self.request_mut() else {
            return;
        };
        if pushed.stamp <= request.known_since {
            // The message is late, and the grant ended before the server said "wait", or the server has lost its data. The
            // next request has the same owner token, and gets a larger fencing token.
            return request.wait_until(cx.now);
        }
        request.may_hold = true;
        // Only an entry in the queue is granted the lock by a message, so `queued_ttl` is set.
        let ttl = request.queued_ttl.unwrap_or_default();
        let granted = Granted {
            grant: pushed.grant,
            ttl,
            valid_until: validity(request.waits_since, ttl),
        };
        self.granted(granted, cx);
    }

    /// Hands a grant to a waiter. If too little of its lease may be left, requests the lock again instead.
    ///
    /// The acquire is idempotent: its reply contains the fencing token and the permit that this owner token has by then. A
    /// renewal would not be enough. The lease of the grant may have ended, and an earlier request without a reply may since
    /// have been granted the lock again, after another holder and with another permit. A renewal would only confirm that
    /// the owner token has the lock.
    fn granted(&mut self, granted: Granted, cx: &mut Transition<'_, W, L, O>) {
        if let Some(request) = self.request() {
            let owner = request.owner.clone();
            cx.actions
                .push(Action::Learn(owner, granted.grant.tokens.last()));
        }
        if !granted.is_short(cx.now) {
            return self.grant_to_head(granted, cx);
        }
        if let Some(request) = self.request_mut() {
            request.wait_until(cx.now);
        }
    }

    /// Gives a grant to the next waiter if that waiter asks for the same ttl and mode. Otherwise the lock is requested
    /// again for that waiter: with a longer ttl than it asked for, a crash would block others for too long, and a shorter
    /// one would not be enough.
    fn grant_to_head(&mut self, mut granted: Granted, cx: &mut Transition<'_, W, L, O>) {
        let Some(waiting) = &mut self.waiting else {
            return;
        };
        let Some(request) = &mut waiting.request else {
            return;
        };
        let Some((id, head)) = waiting.queue.head() else {
            return;
        };
        let terms = head.terms;
        if terms.ttl != granted.ttl || terms.mode != request.mode {
            return request.wait_until(cx.now);
        }
        let Some(fencing) = granted.grant.tokens.take() else {
            return;
        };
        let rivals = request.rivals;
        let owner = request.owner.clone();
        let mut lease = ServerLease::new(owner, &granted, request, &terms, cx);
        let ends = lease.valid_until;
        if self.kind == RequestKind::Exclusive && waiting.queue.length() > 1 {
            lease.prefetch(cx);
        }
        waiting.request = None;
        let at = self.leases.len();
        if at == 0 {
            // There is usually a single lease, but a vector would allocate space for four.
            self.leases.reserve_exact(1);
        }
        self.leases.push(lease);
        if rivals != Rivals::None {
            cx.actions.push(Action::HandedOverRemotely);
        }
        self.grant(at, id, fencing, cx);
        match self.kind {
            RequestKind::Exclusive | RequestKind::Once => {
                self.refuse_impatient(&Refusal::busy_until(ends), cx);
            }
            RequestKind::Shared => self.admit_all(at, cx),
            RequestKind::Permits => {}
        }
    }
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use super::*;
    use crate::{
        engine::{
            event::{AfterRelease, Event, Outcome},
            terms::{Defaults, Terms},
            transition::{Host, Limits, NewLease},
        },
        fencing::FencingBlock,
        options::LockOptions,
    };

    const TTL: Duration = Duration::from_secs(3);
    const TASK: TaskId = TaskId(1);

    type Key = KeyState<(), (), u64>;

    struct Alone;

    impl Host<(), (), u64> for Alone {
        fn new_owner(&self, _: Mode) -> u64 {
            7
        }

        fn new_lease(&self, _: NewLease<'_, u64>) {}

        fn known_fencing(&self, _: &u64) -> u64 {
            0
        }

        fn jitter(&self, span: Duration) -> Duration {
            span
        }
    }

    type Actions = Vec<Action<(), (), u64>>;

    /// Applies an event at this second of the clock.
    fn at(key: &mut Key, second: u64, event: Event<'_, (), u64>) -> (Outcome<(), u64>, Actions) {
        within(Limits::default(), key, second, event)
    }

    fn within(
        limits: Limits,
        key: &mut Key,
        second: u64,
        event: Event<'_, (), u64>,
    ) -> (Outcome<(), u64>, Actions) {
        let mut cx = transition(limits, second);
        let outcome = key.apply(event, &mut cx);
        (outcome, cx.actions)
    }

    fn transition(limits: Limits, second: u64) -> Transition<'static, (), (), u64> {
        Transition {
            now: Moment::from_nanos(second * 1_000_000_000),
            limits,
            polling_pause: Duration::from_millis(50),
            host: &Alone,
            actions: Vec::new(),
        }
    }

    fn polled(key: &mut Key, second: u64) -> Outcome<(), u64> {
        let poll = Event::Poll {
            id: TASK,
            waker: &mut Some(()),
            reply: None,
        };
        at(key, second, poll).0
    }

    fn waiting() -> Key {
        let mut key = Key::new(RequestKind::Exclusive);
        wait(&mut key, TASK);
        key
    }

    fn wait(key: &mut Key, id: TaskId) {
        let options = LockOptions::new(TTL).wait_forever();
        let terms = Terms::new(&options, Defaults::default()).expect("valid");
        let wait = Event::Wait {
            id,
            terms: &terms,
            deadline: None,
            waker: &mut Some(()),
        };
        at(key, 10, wait);
    }

    fn busy(is_next: bool) -> Busy {
        Busy {
            expiry: Expiry::Unknown,
            position: None,
            wake_up: WakeUpMode::Push,
            is_next,
            stamp: None,
            holder: None,
        }
    }

    /// Delivers the server's "wait" reply, with or without a stamp.
    fn reply_to_wait(key: &mut Key, second: u64, stamp: Option<u64>) {
        let busy = Busy {
            stamp,
            ..busy(true)
        };
        let reply = replying(Ok(AcquireOutcome::Busy(busy)));
        at(key, second, Event::Acquired(&7, reply));
    }

    fn granting(fencing: u64) -> AcquireReply {
        let grant = FencingBlock::new(fencing, 1).into();
        replying(Ok(AcquireOutcome::Granted(grant)))
    }

    fn replying(result: Result<AcquireOutcome, Failure>) -> AcquireReply {
        AcquireReply {
            result,
            is_settled: true,
            has_not_left: false,
            is_astray: false,
        }
    }

    fn is_granted(key: &mut Key, second: u64) -> bool {
        matches!(polled(key, second), Outcome::Acquired(()))
    }

    fn pushed(fencing: u64) -> PushedGrant {
        PushedGrant {
            grant: FencingBlock::new(fencing, 1).into(),
            stamp: fencing,
        }
    }

    /// Servers that vote return tokens only in reply to an acquire.
    #[test]
    fn tokens_are_prefetched_only_if_a_renewal_can_take_some() {
        for prefetches in [true, false] {
            let limits = Limits {
                handoffs_before_queue: 3,
                prefetches,
                ..Limits::default()
            };
            let mut key = waiting();
            wait(&mut key, TaskId(2));
            wait(&mut key, TaskId(3));
            let mut reply = granting(1);
            reply.result = Ok(AcquireOutcome::Granted(FencingBlock::new(1, 3).into()));
            let (_, mut actions) = within(limits, &mut key, 10, Event::Acquired(&7, reply));
            assert!(is_granted(&mut key, 10));
            let (released, more) = within(limits, &mut key, 10, Event::Release(TASK, &7));
            assert!(matches!(released, Outcome::Released(AfterRelease::Passed)));
            actions.extend(more);
            let takes = |one: &_| matches!(one, Action::Renew { tokens, .. } if *tokens > 0);
            assert_eq!(actions.iter().any(takes), prefetches, "{actions:?}");
        }
    }

    /// The lease of the grant ran out before the server said "wait" again, but the process reads the message of the grant
    /// after that reply.
    #[test]
    fn the_message_of_a_grant_that_has_ended_is_not_mistaken_for_a_new_grant() {
        let mut key = waiting();
        reply_to_wait(&mut key, 10, None);
        // The process sends a check.
        at(&mut key, 13, Event::Tick);
        reply_to_wait(&mut key, 13, Some(100));
        at(&mut key, 13, Event::Pushed(&7, pushed(100)));
        assert!(!is_granted(&mut key, 13));
        // The next check gets the same reply.
        reply_to_wait(&mut key, 13, Some(100));
        at(&mut key, 13, Event::Pushed(&7, pushed(101)));
        let held = key.leases.first();
        let held = held.expect("the grant is newer than the last reply");
        assert_eq!(
            held.valid_until,
            validity(Moment::from_nanos(13_000_000_000), TTL)
        );
        assert!(is_granted(&mut key, 13));
    }

    #[test]
    fn the_pause_after_a_lost_vote_does_not_grow_as_in_an_outage() {
        let pause_after_eight = |failure: fn(&'static str) -> Failure| {
            let mut key = waiting();
            for second in 11..=18 {
                at(&mut key, second, Event::Tick);
                let reply = replying(Err(failure("no majority")));
                at(&mut key, second, Event::Acquired(&7, reply));
            }
            let due = key.request().and_then(AcquireRequest::due);
            let last = Moment::from_nanos(18_000_000_000);
            due.expect("waits for the lock").since(last)
        };
        let twice = Duration::from_millis(50) * 2;
        assert_eq!(pause_after_eight(Failure::lost_vote), twice);
        assert_eq!(pause_after_eight(Failure::not_now), LONGEST_PAUSE);
    }

    #[test]
    fn a_new_connection_shortens_the_pause_unless_the_server_said_that_it_cannot_serve() {
        let failures = [
            (Failure::no_reply("the connection was closed"), true),
            (Failure::not_now("a replica"), false),
        ];
        let now = Moment::from_nanos(10_000_000_000);
        let whole_pause = now.after(Duration::from_millis(50) * 2);
        for (failure, shortens) in failures {
            for is_before_the_reply in [true, false] {
                let mut key = waiting();
                if is_before_the_reply {
                    at(&mut key, 10, Event::Reconnected(now));
                }
                at(
                    &mut key,
                    10,
                    Event::Acquired(&7, replying(Err(failure.clone()))),
                );
                if !is_before_the_reply {
                    at(&mut key, 10, Event::Reconnected(now));
                }
                let due = key.request().and_then(AcquireRequest::due);
                let is_shorter = due != Some(whole_pause);
                assert_eq!(is_shorter, shortens, "{failure:?}, {is_before_the_reply}");
            }
        }
    }

    /// A beat is 1.05 s, since the jitter is at its largest.
    #[test]
    fn only_the_first_entry_of_the_queue_is_checked_more_often_than_once_a_beat() {
        let beat = Duration::from_millis(1_050);
        for millis in [100, 900, 60_000] {
            let left = Duration::from_millis(millis);
            let pause_of = |is_next| {
                let cx = transition(Limits::default(), 10);
                let busy = Busy {
                    expiry: Expiry::In(left),
                    ..busy(is_next)
                };
                checking_pause(&busy, false, &cx)
            };
            assert_eq!(pause_of(false), beat);
            // The holder's lease has ended by then.
            assert_eq!(pause_of(true), beat.min(left + Duration::from_millis(2)));
        }
    }

    /// Each reply arrives after the lease that it grants has ended.
    #[test]
    fn a_ttl_that_is_too_short_for_the_server_is_refused_at_the_third_late_grant() {
        let mut key = waiting();
        for second in [14, 19, 24] {
            assert!(matches!(polled(&mut key, second), Outcome::Pending));
            at(&mut key, second, Event::Acquired(&7, granting(second)));
            at(&mut key, second + 1, Event::Tick);
        }
        let Outcome::Refused(Refusal::TooSlow { took, ttl }) = polled(&mut key, 25) else {
            panic!("the task still waits");
        };
        assert!(took > ttl, "{took:?}");
    }

    #[test]
    fn a_pushed_grant_that_may_be_too_old_is_requested_again_before_a_task_gets_it() {
        let mut key = waiting();
        reply_to_wait(&mut key, 10, None);
        let (_, actions) = at(&mut key, 12, Event::Pushed(&7, pushed(5)));
        let asks = |action: &Action<(), (), u64>| matches!(action, Action::Acquire(asked) if asked.owner == 7);
        assert!(actions.iter().any(asks), "{actions:?}");
        assert!(!is_granted(&mut key, 12));
        at(&mut key, 12, Event::Acquired(&7, granting(9)));
        assert!(is_granted(&mut key, 12));
        let held = key.leases.first().expect("the lock is granted");
        assert_eq!(u64::from(held.tokens.last()), 9, "the token of the reply");
    }

    /// The result may have been forgotten between the server's reply and the call of the second task.
    #[test]
    fn a_result_answers_only_tasks_that_waited_when_the_request_was_sent() {
        let mut key = Key::new(RequestKind::Once);
        let options = LockOptions::new(TTL).wait_forever();
        let mut terms = Terms::new(&options, Defaults::default()).expect("valid");
        terms.mode = Mode::Once;
        let wait = |key: &mut Key, id| {
            let wait = Event::Wait {
                id: TaskId(id),
                terms: &terms,
                deadline: None,
                waker: &mut Some(()),
            };
            at(key, 10, wait);
        };
        let poll = |key: &mut Key, id| {
            let poll = Event::Poll {
                id: TaskId(id),
                waker: &mut Some(()),
                reply: None,
            };
            at(key, 10, poll).0
        };
        wait(&mut key, 1);
        assert!(matches!(poll(&mut key, 1), Outcome::Pending));
        wait(&mut key, 2);
        let done = AcquireOutcome::Done(b"result".to_vec().into());
        let done = replying(Ok(done));
        let (_, actions) = at(&mut key, 10, Event::Acquired(&7, done));
        assert!(matches!(
            poll(&mut key, 1),
            Outcome::Refused(Refusal::Done(_))
        ));
        assert!(matches!(poll(&mut key, 2), Outcome::Pending));
        let asks = |action: &Action<(), (), u64>| matches!(action, Action::Acquire(_));
        assert!(actions.iter().any(asks), "{actions:?}");
    }

    #[test]
    fn a_late_grant_is_requested_again() {
        let mut key = waiting();
        at(&mut key, 12, Event::Acquired(&7, granting(5)));
        assert!(!is_granted(&mut key, 12));
        at(&mut key, 13, Event::Acquired(&7, granting(9)));
        assert!(is_granted(&mut key, 13));
    }
}
