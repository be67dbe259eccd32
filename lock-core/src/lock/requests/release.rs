//! Releases a key on the server, whatever fails meanwhile.
//!
//! The task that releases polls the release until it knows the result. From then on, and if the task is dropped, the manager's
//! executor goes on with it. The release is repeated until the server has replied on the very connection that carried every acquire
//! with this token. The tries end at the latest when the lease must have ended by itself.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context as TaskContext, Poll, ready},
};

use crate::{
    error::{LeaseLost, LockError},
    key::LockKey,
    lock::{
        context::{Context, forked},
        key_state::ReleaseAction,
        requests::release_in_flight::Unanswered,
    },
    runtime::{clock::Moment, jitter::jittered, tally::Open},
    store::{Failure, Release, ReleaseOutcome, Released, in_flight::InFlight, owner::Owner},
};

use std::time::Duration;

/// The first pause between two tries; it doubles up to the longest one.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The longest pause once the server has replied.
const LONGEST_CLEAN_UP_PAUSE: Duration = Duration::from_secs(60);

/// After so many replies that refuse the release, no further try is of use.
const MOST_REFUSALS: u32 = 3;

/// A release that its task may wait for. Dropping it leaves the release in flight.
///
/// Written by hand, to be small: each of thousands of tasks that wait for a lock keeps room for one.
#[must_use = "futures do nothing unless polled"]
pub(crate) struct Releasing {
    context: Option<Arc<Context>>,
    key: LockKey,
    /// Set for a lease that was lost, and is not to be released.
    lost: Option<LeaseLost>,
    /// The tries, until the result is known.
    work: Option<Pin<Box<dyn Future<Output = ReleaseTask> + Send>>>,
}

/// A release in flight.
struct ReleaseTask {
    key: LockKey,
    action: ReleaseAction<Arc<Owner>>,
    /// Whether the lease was known to be lost before.
    lost: Option<LeaseLost>,
    context: Arc<Context>,
    started: Moment,
    /// The connections that the tries were sent on.
    in_flight: Arc<InFlight>,
    tries: Tries,
    pause: Duration,
    /// When every server had replied for the first time.
    answered: Option<Moment>,
    /// Set if the lock is free, and its queue is still to be served. The drop of the last manager waits for it.
    unserved: Option<Open>,
    result: Option<Result<(), LockError>>,
    /// Dropped as soon as there is a result.
    unanswered: Option<Unanswered>,
    is_over: bool,
    /// A shutdown waits for it.
    _open: Open,
}

/// What came of the tries so far.
#[derive(Default)]
struct Tries {
    all: u32,
    refused: u32,
    /// Whether one of them was sent and has no reply.
    may_have_done_it: bool,
}

impl Tries {
    fn count(&mut self, failure: &Failure, in_flight: &InFlight) {
        self.all += 1;
        self.may_have_done_it |= !failure.is_definite() && !in_flight.is_empty();
        self.refused += u32::from(!failure.is_transient());
    }
}

/// Begins a release, which is sent with the first poll. `unanswered` makes the next acquire of the key take account of the release.
pub(crate) fn release(
    context: &Arc<Context>,
    key: &LockKey,
    action: ReleaseAction<Arc<Owner>>,
    started: Moment,
    lost: Option<LeaseLost>,
    unanswered: Option<Unanswered>,
) -> Releasing {
    let noted = unanswered.as_ref().map(Unanswered::release);
    let in_flight = noted.map(|release| release.connections.clone());
    let mut task = ReleaseTask {
        key: key.clone(),
        action,
        lost,
        context: context.clone(),
        started,
        in_flight: in_flight.unwrap_or_default(),
        tries: Tries::default(),
        pause: FIRST_PAUSE,
        answered: None,
        unserved: None,
        result: None,
        unanswered,
        is_over: false,
        _open: context.in_progress.open(),
    };
    Releasing {
        context: Some(context.clone()),
        key: key.clone(),
        lost: None,
        work: Some(Box::pin(async move {
            while task.result.is_none() && !task.is_over {
                task.try_again().await;
            }
            task.unanswered = None;
            task
        })),
    }
}

impl Releasing {
    /// For a lease that this process inherited by a fork.
    pub(crate) fn forked(key: LockKey) -> Self {
        Self {
            context: None,
            key,
            lost: None,
            work: None,
        }
    }

    /// For a lease that its task lost, and that other tasks still have.
    pub(crate) fn lost(key: LockKey, reason: LeaseLost) -> Self {
        Self {
            context: None,
            key,
            lost: Some(reason),
            work: None,
        }
    }

    /// Sends the request now, before any other request.
    pub(crate) fn send(&mut self) {
        if let Some(work) = &mut self.work {
            let polled = work
                .as_mut()
                .poll(&mut TaskContext::from_waker(std::task::Waker::noop()));
            if let Poll::Ready(task) = polled {
                self.work = Some(Box::pin(std::future::ready(task)));
            }
        }
    }
}

impl Future for Releasing {
    type Output = Result<(), LockError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Some(reason) = this.lost {
            return Poll::Ready(Err(LockError::lost(&this.key, reason, None)));
        }
        let here = this.context.as_ref().filter(|context| context.is_here());
        // In a child that was forked after the first poll the reply never comes.
        let (Some(manager), Some(work)) = (here, &mut this.work) else {
            return Poll::Ready(Err(forked().about(&this.key)));
        };
        let mut task = ready!(work.as_mut().poll(context));
        this.work = None;
        let result = task.result.take().unwrap_or_else(|| {
            let none = "no certain reply before the lease ended by itself";
            Err(LockError::unavailable(none).about(&this.key))
        });
        if !task.is_over {
            manager.executor.start(task.go_on());
        }
        Poll::Ready(result)
    }
}

impl Drop for Releasing {
    fn drop(&mut self) {
        let (Some(context), Some(work)) = (&self.context, self.work.take()) else {
            return;
        };
        if !context.is_here() {
            // A release in flight belongs to the parent.
            return std::mem::forget(work);
        }
        context.executor.start(async move {
            let task = work.await;
            task.go_on().await;
        });
    }
}

impl ReleaseTask {
    /// Repeats the release until it is certain. Bounded: see `try_again`.
    async fn go_on(mut self) {
        while !self.is_over {
            self.try_again().await;
        }
    }

    async fn try_again(&mut self) {
        // A request may sit in a socket of a server that hangs, and a last renewal as well. This bounds the tries: one a second
        // while no server replies, and 80 for a ttl of an hour after one has.
        let patience = self.context.timing.command_timeout.saturating_mul(5);
        let give_up = self.started.after(self.action.ttl + patience);
        let is_first = self.result.is_none() || self.unserved.is_some();
        if self.tries.all > 0 || !is_first {
            let now = self.context.clock.now();
            if now >= give_up {
                if self.answered.is_none() {
                    tracing::warn!(key = %self.key.shown(), "the release got no certain reply before the lease ended by itself");
                }
                self.is_over = true;
                return;
            }
            let longest = self.answered.map_or(LONGEST_PAUSE, |answered| {
                clean_up_pause(now.since(answered))
            });
            self.pause = self.pause.min(longest);
            // The last try is at the end: a copy of the acquire that arrives just before then would otherwise stay for its ttl.
            let until = now.after(jittered(self.pause)).min(give_up);
            self.context.timer.sleep_until(until).await;
            self.pause = self.pause.saturating_mul(2);
        }
        let request = self.request();
        let answer = self.context.store.release(request).await;
        self.read(answer);
    }

    fn request(&self) -> Release {
        let kept_until = self.action.kept_until;
        let keep = kept_until.map(|until| until.since(self.context.clock.now()));
        let owner = &self.action.owner;
        Release {
            full_key: owner.full_key.clone(),
            token: owner.token.clone(),
            keep: keep.filter(|keep| !keep.is_zero()),
            known_fencing: self.context.known_tokens.of(owner.clock),
            entry: owner.entry.in_queue(),
            may_be_queued: self.action.is_queued,
            in_flight: self.in_flight.clone(),
            acquire_in_flight: owner.in_flight.clone(),
        }
    }

    /// Notes the result for the task that waits, and whether there is nothing more to do.
    fn read(&mut self, answer: Result<Released, Failure>) {
        self.context.outage.note(&answer, &self.context.clock);
        let failure = match answer {
            Ok(released) => {
                let result = self.verdict(released.outcome);
                self.result.get_or_insert(result);
                self.is_over = self
                    .action
                    .owner
                    .in_flight
                    .is_settled_by(released.connection);
                if released.connection.is_of_all_servers() {
                    self.answered
                        .get_or_insert_with(|| self.context.clock.now());
                }
                if released.outcome == ReleaseOutcome::ReleasedUnserved {
                    // The tries that serve the queue are counted anew.
                    self.tries = Tries::default();
                    self.unserved = Some(self.context.in_background.open());
                    self.is_over = false;
                }
                return;
            }
            Err(failure) => failure,
        };
        tracing::debug!(key = %self.key.shown(), ?failure, tries = self.tries.all, "a release got no answer");
        self.tries.count(&failure, &self.in_flight);
        // A connection that was closed while idle fails at once, and the next try repairs it. A failure that passes by itself (a
        // slot of a cluster that is being moved) may be over at the next try, too. After a time-out the task has waited long
        // enough.
        let waited = self.context.clock.now().since(self.started);
        let may_pass = failure.is_definite() && failure.is_transient();
        let was_enough = self.tries.all > 1 && !may_pass;
        self.is_over = self.tries.refused >= MOST_REFUSALS;
        if was_enough || self.is_over || waited >= self.context.timing.command_timeout {
            // An earlier loss of the lease stays: no reply can change it.
            let error = match self.lost {
                Some(reason) => self.lost_error(reason),
                None => LockError::from(failure).about(&self.key),
            };
            self.result.get_or_insert(Err(error));
        }
    }

    /// What the server's reply means for the task.
    ///
    /// If the key is not held any more, an earlier try deleted it, or it was taken away. A try deleted it if one was sent without a
    /// reply and the lease cannot have run out.
    ///
    /// A key that ran out before it could be kept for `min_hold` is not set again. Its absence does not say why it is gone. The
    /// reply is the same if an operator freed the lock while only this process was cut off, or another holder took and released it.
    fn verdict(&self, outcome: ReleaseOutcome) -> Result<(), LockError> {
        let lost = |reason| Err(self.lost_error(reason));
        match (self.lost, outcome) {
            (Some(reason), _) => lost(reason),
            (None, ReleaseOutcome::Released | ReleaseOutcome::ReleasedUnserved) => Ok(()),
            (None, ReleaseOutcome::NotOurs)
                if self.context.clock.now() >= self.action.valid_until =>
            {
                lost(LeaseLost::Expired)
            }
            (None, ReleaseOutcome::NotOurs) if self.tries.may_have_done_it => Ok(()),
            (None, ReleaseOutcome::NotOurs) => lost(LeaseLost::TakenAway),
        }
    }

    fn lost_error(&self, reason: LeaseLost) -> LockError {
        LockError::lost(&self.key, reason, self.context.outage.failure())
    }
}

/// The longest pause before the next try. `since`: the time since the first try that had a reply.
///
/// By then the key is not ours. Only a copy of the acquire can still take it, from the socket of a connection that broke. This gets
/// less likely with time, so the pauses grow. Such a copy keeps the key for about a quarter of the time that it was in flight.
fn clean_up_pause(since: Duration) -> Duration {
    (since / 4).clamp(LONGEST_PAUSE, LONGEST_CLEAN_UP_PAUSE)
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use crate::{
        inspect::{Health, Sighting},
        runtime::{clock::Clock, executor::Executor, timer::Timer},
        store::{
            Acquire, Acquired, Page, PagePosition, Prefetch, Prefetched, Renew, Renewed, Store,
            StoreFuture, in_flight::ConnectionId, timing::Timing,
        },
    };

    use super::*;
    use crate::{lock::context::outage::Outage, mode::Mode};

    const SECOND: Duration = Duration::from_secs(1);
    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn clean_ups_grow_rarer_up_to_one_a_minute() {
        for (since, pause) in [(0, 1), (4, 1), (8, 2), (60, 15), (240, 60), (3600, 60)] {
            let clean_up = clean_up_pause(SECOND * since);
            assert_eq!(clean_up, SECOND * pause, "after {since} s");
        }
    }

    /// Replies to releases, all on one connection, and counts them.
    #[derive(Debug, Default)]
    struct Counting(AtomicU32);

    impl Store for Counting {
        fn release(&self, _: Release) -> StoreFuture<Released> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Box::pin(std::future::ready(Ok(Released {
                outcome: ReleaseOutcome::Released,
                connection: ConnectionId::new(2),
            })))
        }

        fn acquire(&self, _: Acquire) -> StoreFuture<Acquired> {
            unreachable!("only releases are sent")
        }

        fn renew(&self, _: Vec<Renew>, _: Duration) -> StoreFuture<Vec<Result<Renewed, Failure>>> {
            unreachable!("only releases are sent")
        }

        fn prefetch(&self, _: Prefetch) -> StoreFuture<Prefetched> {
            unreachable!("only releases are sent")
        }

        fn inspect(&self, _: Arc<str>) -> StoreFuture<Option<Sighting>> {
            unreachable!("only releases are sent")
        }

        fn list(&self, _: Arc<str>, _: PagePosition) -> StoreFuture<Page> {
            unreachable!("only releases are sent")
        }

        fn force_release(&self, _: Arc<str>, _: u64) -> StoreFuture<()> {
            unreachable!("only releases are sent")
        }

        fn check(&self, _: Arc<crate::store::known_tokens::KnownTokens>) -> StoreFuture<Health> {
            unreachable!("only releases are sent")
        }

        fn round_trip(&self) -> Duration {
            Duration::ZERO
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lock_of_an_hour_from_a_connection_that_broke_is_cleaned_up_a_hundred_times_at_most()
    {
        let (store, clock) = (Arc::<Counting>::default(), Clock::tokio());
        let timer = Timer::of_the_caller(clock.clone());
        let context = Arc::new(Context::new(
            store.clone(),
            Arc::default(),
            Executor::Caller,
            clock.clone(),
            timer,
            Timing::default(),
            Outage::new(None),
        ));
        let key = LockKey::new("k");
        let owner = Owner::new(
            &context.owner_tokens,
            &context.grants,
            Mode::Exclusive,
            "lock:k".into(),
            0,
        );
        owner.in_flight.note_sent_on(ConnectionId::new(1));
        owner.in_flight.note_sent_on(ConnectionId::new(2));
        let started = clock.now();
        let action = ReleaseAction {
            owner: Arc::new(owner),
            ttl: HOUR,
            valid_until: started.after(HOUR),
            kept_until: None,
            is_queued: false,
        };
        let mut released = release(&context, &key, action, started, None, None);
        released.send();
        released.await.expect("the reply to the first one");
        let mut last = (0, started);
        while clock.now().since(started) < HOUR * 2 {
            tokio::time::sleep(SECOND).await;
            let sent = store.0.load(Ordering::Relaxed);
            if sent > last.0 {
                last = (sent, clock.now());
            }
        }
        let (sent, at) = last;
        assert!((60..=100).contains(&sent), "{sent} were sent");
        assert!(at.since(started) >= HOUR, "a copy may come until then");
        assert!(at.since(started) < HOUR + SECOND * 10, "no copy comes then");
    }
}
