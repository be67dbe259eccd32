//! The repetition of a release until it is certain that the key is released, whatever fails in the meantime.
//!
//! The first try is part of the caller's future. The next ones run on the manager's executor, even if the caller has its
//! result or has been dropped. The release is repeated until the backend has replied on each order (see `in_flight.rs` in
//! `backend/`) that carried an acquire with this owner token. The tries end at the latest when the lease must have ended by
//! itself.

use std::{sync::Arc, time::Duration};

use crate::{
    backend::Answered, driver::release_in_flight::ReleaseInFlight, engine::reply::ReleaseOutcome,
    failure::Failure, key::Shown, moment::Moment, runtime::jitter::jittered,
};

/// The first pause between two tries. It doubles up to the longest one.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The longest pause once the server has replied.
const LONGEST_CLEAN_UP_PAUSE: Duration = Duration::from_secs(60);

/// The number of tries with a result. If the server has no memory for it each time, the lock is released without it.
const MOST_NOT_STORED: u32 = 3;

/// The number of refusals after which further tries are useless.
const MOST_REFUSALS: u32 = 3;

/// A release that is repeated until it is certain that the key is not ours and can no longer become ours, and the
/// results of its tries.
pub(super) struct Tries {
    release: Arc<ReleaseInFlight>,
    failed: u32,
    refused: u32,
    /// The number of tries that found the server without memory for the result.
    not_stored: u32,
    /// `true` if a try was sent and got no reply.
    may_have_done_it: bool,
    pause: Duration,
    /// When the backend replied for the first time.
    answered: Option<Moment>,
    is_over: bool,
}

impl Tries {
    pub(super) fn new(release: Arc<ReleaseInFlight>) -> Self {
        Self {
            release,
            failed: 0,
            refused: 0,
            not_stored: 0,
            may_have_done_it: false,
            pause: FIRST_PAUSE,
            answered: None,
            is_over: false,
        }
    }

    /// Returns `true` if there is nothing more to do.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Makes the remaining tries, and reports the outcome once. `may_continue` bounds their number.
    pub(super) async fn repeat(
        mut self,
        report: impl FnOnce(Result<ReleaseOutcome, Failure>) + Send,
    ) {
        let mut report = Some(report);
        while !self.is_over && self.may_continue().await {
            let answer = self.release.try_once().await;
            if let Some(outcome) = self.read(answer)
                && let Some(report) = report.take()
            {
                report(outcome);
            }
        }
        if let Some(report) = report {
            let none = "the release was not confirmed before the lease ended by itself";
            report(Err(Failure::no_reply(none)));
        }
    }

    /// Waits until the next try is due. Returns `false` if there is none.
    ///
    /// Copies of the acquire and of the last renewal may be stuck in a socket of a server that hangs. The tries end when
    /// such a copy can no longer hold the key. There is one try a second until the server has replied, and after that some
    /// 80 for a ttl of an hour.
    async fn may_continue(&mut self) -> bool {
        let ReleaseInFlight {
            context,
            action,
            started,
            ..
        } = &*self.release;
        let now = context.clock.now();
        let patience = context.timing.command_timeout.saturating_mul(5);
        let give_up = started.after(action.ttl + patience);
        if now >= give_up {
            if self.answered.is_none() {
                let key = Shown(&action.owner.full_key);
                tracing::warn!(%key, "the release was not confirmed before the lease ended by itself");
            }
            return false;
        }
        let longest = self.answered.map_or(LONGEST_PAUSE, |answered| {
            clean_up_pause(now.since(answered))
        });
        self.pause = self.pause.min(longest);
        // The last try is made at the very end, because a copy of the acquire that arrives just before would otherwise hold
        // the key for its ttl.
        let until = now.after(jittered(self.pause)).min(give_up);
        context.clock.sleep_until(until).await;
        self.pause = self.pause.saturating_mul(2);
        true
    }

    /// Returns the outcome for the caller, if this try shows it, and records whether the release is certain.
    ///
    /// If the server says that the key is not ours, either an earlier try deleted it, or it was taken away. The first is
    /// assumed if a try was sent without a reply and the lease cannot have run out.
    ///
    /// A key that ran out before it could be kept for `min_hold` is not set again, because its absence does not tell why it
    /// is gone: an operator may have freed the lock, or another holder may have acquired and released it, while this
    /// process was cut off.
    pub(super) fn read(
        &mut self,
        answer: Result<Answered<ReleaseOutcome>, Failure>,
    ) -> Option<Result<ReleaseOutcome, Failure>> {
        let answered = match answer {
            Ok(answered) if answered.outcome == ReleaseOutcome::NotStored => {
                self.note_not_stored();
                return None;
            }
            Ok(answered) => answered,
            Err(failure) => return self.note_failure(failure).map(Err),
        };
        // From here on, the result is stored, or the lease was lost. If a late copy of the acquire takes the key now, the
        // next try releases it, but must not store the result again, which may have been forgotten or be out of date by
        // then.
        *self.release.result.lock() = None;
        let ReleaseInFlight {
            context, action, ..
        } = &*self.release;
        self.is_over = action.owner.in_flight.note_answer(answered.order);
        let now = context.clock.now();
        if !self.is_over {
            self.answered.get_or_insert(now);
        }
        Some(Ok(match answered.outcome {
            ReleaseOutcome::NotOurs if self.may_have_done_it && now < action.valid_until => {
                ReleaseOutcome::Released
            }
            ReleaseOutcome::Released if self.not_stored >= MOST_NOT_STORED => {
                ReleaseOutcome::ReleasedWithoutResult
            }
            outcome => outcome,
        }))
    }

    /// Records that the server had no memory for the result, and so kept the lock. After some tries the result is given up,
    /// since others wait for the lock.
    fn note_not_stored(&mut self) {
        self.not_stored += 1;
        if self.not_stored >= MOST_NOT_STORED {
            *self.release.result.lock() = None;
        }
    }

    /// Records a try that failed. Returns the failure if the caller has waited long enough.
    fn note_failure(&mut self, failure: Failure) -> Option<Failure> {
        let ReleaseInFlight {
            context,
            action,
            started,
            ..
        } = &*self.release;
        tracing::debug!(key = %Shown(&action.owner.full_key), ?failure, tries = self.failed, "a release got no reply");
        self.failed += 1;
        self.may_have_done_it |= !failure.is_definite() && !action.owner.released_on.is_empty();
        self.refused += u32::from(!failure.is_transient());
        self.is_over = self.refused >= MOST_REFUSALS;
        // On a connection that was closed while idle, the first try fails at once, and the next one opens a new connection.
        // A temporary failure, such as that of a slot that is being moved, may be over at the next try. After a time-out,
        // the task has waited long enough.
        let may_pass = failure.is_definite() && failure.is_transient();
        let waited = context.clock.now().since(*started);
        let was_enough = self.failed > 1 && !may_pass;
        (was_enough || self.is_over || waited >= context.timing.command_timeout).then_some(failure)
    }
}

/// Returns the longest pause before the next try, given the time since the first try that got a reply.
///
/// After that reply, the key is not ours. Only a late copy of the acquire, from the socket of a broken connection, can
/// still take it. This becomes less likely with time, so the pauses grow: the key is then held for about a quarter of the
/// time that the copy was in flight. With several servers, a minority that is unreachable keeps the key for about a quarter
/// longer than its outage.
fn clean_up_pause(since: Duration) -> Duration {
    (since / 4).clamp(LONGEST_PAUSE, LONGEST_CLEAN_UP_PAUSE)
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use std::{
        fmt,
        sync::{
            Arc,
            atomic::{AtomicU32, Ordering},
        },
    };

    use super::*;
    use crate::{
        backend::{
            Acquire, Backend, Operate, Page, PagePosition, Release, Renew, Reply, RunResult,
            Traits, at_once,
            grants::Grants,
            in_flight::Order,
            owner::{Entry, Owner},
            owner_token::OwnerTokens,
            timing::Timing,
        },
        driver::{
            context::Context, outage::Outage, release_in_flight::OpenRelease, releasing::Releasing,
        },
        engine::{
            reply::{AcquireOutcome, Renewed},
            transition::ReleaseAction,
        },
        fencing::KnownTokens,
        inspect::{Health, Sighting},
        mode::Mode,
        runtime::{clock::Clock, executor::Executor},
    };

    const SECOND: Duration = Duration::from_secs(1);
    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn clean_ups_slow_down_to_one_a_minute() {
        for (since, pause) in [(0, 1), (4, 1), (8, 2), (60, 15), (240, 60), (3600, 60)] {
            let clean_up = clean_up_pause(SECOND * since);
            assert_eq!(clean_up, SECOND * pause, "after {since} s");
        }
    }

    /// A server that has no memory for the result during the first tries, and replies on one order. It counts the tries
    /// without a result and those with one.
    struct Full {
        tries: u32,
        order: Order,
        sent: [AtomicU32; 2],
    }

    impl Full {
        fn new(tries: u32, order: u64) -> Arc<Self> {
            Arc::new(Self {
                tries,
                order: Order::new(order),
                sent: Default::default(),
            })
        }

        fn sent(&self) -> [u32; 2] {
            [0, 1].map(|at| self.sent[at].load(Ordering::Relaxed))
        }
    }

    impl fmt::Debug for Full {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("Full").finish_non_exhaustive()
        }
    }

    fn unasked<T: Send + 'static>() -> Reply<T> {
        at_once(Err(Failure::no_reply("this backend can only release")))
    }

    impl Operate for Full {
        fn inspect(&self, _: Arc<str>) -> Reply<Option<Sighting>> {
            unasked()
        }

        fn list(&self, _: Arc<str>, _: PagePosition) -> Reply<Page> {
            unasked()
        }

        fn forget(&self, _: Arc<str>) -> Reply<()> {
            unasked()
        }

        fn force_release(&self, _: Arc<str>, _: u64) -> Reply<()> {
            unasked()
        }

        fn check(&self, _: Arc<KnownTokens>) -> Reply<Health> {
            unasked()
        }
    }

    impl Backend for Full {
        fn acquire(&self, _: Acquire) -> Reply<Answered<AcquireOutcome>> {
            unasked()
        }

        fn renew(&self, _: Vec<Renew>, _: Duration) -> Reply<Vec<Result<Renewed, Failure>>> {
            unasked()
        }

        fn release(&self, request: Release) -> Reply<Answered<ReleaseOutcome>> {
            let has_result = request.result.is_some();
            let before = self.sent[usize::from(has_result)].fetch_add(1, Ordering::Relaxed);
            at_once(Ok(Answered {
                outcome: if has_result && before < self.tries {
                    ReleaseOutcome::NotStored
                } else {
                    ReleaseOutcome::Released
                },
                order: Some(self.order),
            }))
        }

        fn traits(&self) -> Traits {
            Traits::default()
        }
    }

    fn context_of(backend: &Arc<Full>) -> Arc<Context> {
        Arc::new(Context::new(
            backend.clone(),
            Arc::<Grants>::default(),
            OwnerTokens::of(None),
            Executor::Caller,
            Clock::tokio(),
            Timing::default(),
            Outage::new(None),
        ))
    }

    /// Begins the release of a lock that was acquired for an hour on these connections.
    fn release_of_an_hour(
        context: &Arc<Context>,
        acquired_on: &[u64],
        result: Option<RunResult>,
    ) -> Releasing {
        let owner = Owner::of_entry(Entry {
            number: 0,
            ttl: HOUR,
            mode: Mode::Exclusive,
        });
        for order in acquired_on {
            owner.in_flight.note_sent_on(Order::new(*order));
        }
        let now = context.clock.now();
        let action = ReleaseAction {
            owner,
            ttl: HOUR,
            valid_until: now.after(HOUR),
            kept_until: None,
            is_queued: false,
        };
        Releasing::begin(OpenRelease::new(context, action, now), None, result)
    }

    fn result() -> RunResult {
        RunResult {
            bytes: Arc::from(*b"result"),
            keep: HOUR,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn storing_a_result_is_tried_three_times_and_then_given_up() {
        let cases = [
            (0, true, [0, 1]),
            (2, true, [0, 3]),
            (3, false, [1, 3]),
            (9, false, [1, 3]),
        ];
        for (tries, is_stored, sent) in cases {
            let server = Full::new(tries, 1);
            let context = context_of(&server);
            let released = release_of_an_hour(&context, &[1], Some(result())).await;
            assert_eq!(released.is_ok(), is_stored, "{tries}: {released:?}");
            assert_eq!(server.sent(), sent, "{tries}");
        }
    }

    /// The repetition is for a late copy of the acquire. By the time it takes the key, the result may have been forgotten.
    #[tokio::test(start_paused = true)]
    async fn a_release_that_is_repeated_after_a_reply_stores_no_result() {
        let server = Full::new(0, 1);
        let context = context_of(&server);
        let released = release_of_an_hour(&context, &[1, 2], Some(result())).await;
        released.expect("released by the first try");
        context.in_progress.emptied().await;
        let [without, with] = server.sent();
        assert_eq!(with, 1);
        assert!(without > 0, "the release is repeated");
    }

    #[tokio::test(start_paused = true)]
    async fn an_hour_long_lock_of_a_broken_connection_is_cleaned_up_at_most_a_hundred_times() {
        let server = Full::new(0, 2);
        let context = context_of(&server);
        let started = context.clock.now();
        let released = release_of_an_hour(&context, &[1, 2], None).await;
        released.expect("released by the first try");
        let open = &context.in_progress;
        assert_eq!(open.count(), 1, "a shutdown waits for the other tries");
        open.emptied().await;
        let (sent, took) = (server.sent()[0], context.clock.now().since(started));
        assert!((60..=100).contains(&sent), "{sent} tries were sent");
        assert!(took >= HOUR, "a copy may arrive within the ttl");
        assert!(took < HOUR + SECOND * 10, "no copy arrives much later");
    }
}
