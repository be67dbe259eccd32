//! Repeats a release at one server, whatever fails meanwhile, until it is certain.
//!
//! The first try is part of the caller's future. The next ones run on the manager's executor, also when the caller has its result
//! or has gone. The release is repeated until the server has replied on the very connection that carried every acquire with this
//! token. The tries end at the latest when the lease must have ended by itself.

use std::{future::Future, sync::Arc, time::Duration};

use tokio::sync::oneshot;

use crate::{
    backend::{Release, Released},
    engine::reply::ReleaseOutcome,
    failure::Failure,
    fencing::KnownTokens,
    key::Shown,
    moment::Moment,
    runtime::{clock::Clock, executor::Executor, jitter::jittered, tally::Open},
};

/// A release that continues until it is certain that the key is not ours and will not be.
#[derive(Clone, Debug)]
pub(crate) struct CertainRelease {
    /// A try, but for what it takes from the fields below.
    pub(crate) request: Release,
    /// Until when `min_hold` keeps the key.
    pub(crate) kept_until: Option<Moment>,
    pub(crate) started: Moment,
    /// For how long a copy of the acquire may block others.
    pub(crate) ttl: Duration,
    /// Until when the lease is certain to be ours.
    pub(crate) valid_until: Moment,
    pub(crate) known_tokens: Arc<KnownTokens>,
    /// Where the tries run that the caller does not wait for.
    pub(crate) executor: Executor,
    pub(crate) clock: Clock,
    pub(crate) command_timeout: Duration,
    /// A shutdown waits for it.
    pub(crate) _open: Open,
}

impl CertainRelease {
    /// The next try, as it is sent now.
    pub(crate) fn next_try(&mut self) -> &Release {
        let kept_for = |until: Moment| until.since(self.clock.now());
        self.request.keep = (self.kept_until.map(kept_for)).filter(|keep| !keep.is_zero());
        self.request.known_fencing = self.known_tokens.of(self.request.owner.clock);
        &self.request
    }
}

/// The first pause between two tries; it doubles up to the longest one.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The longest pause once the server has replied.
const LONGEST_CLEAN_UP_PAUSE: Duration = Duration::from_secs(60);

/// After so many replies that the server has no memory for the result, the lock is released without it.
const MOST_NOT_STORED: u32 = 3;

/// After so many replies that refuse the release, no further try is of use.
const MOST_REFUSALS: u32 = 3;

/// One server that keeps locks.
pub(crate) trait OneServer: Clone + Send + Sync + 'static {
    /// Sends a release once. The future contains nothing of a runtime.
    fn release_once(
        &self,
        request: &Release,
    ) -> impl Future<Output = Result<Released, Failure>> + Send;
}

/// Releases a key. The result is there as soon as it is known; the tries that are still needed go on without the caller.
pub(crate) fn release(
    server: impl OneServer,
    release: CertainRelease,
) -> impl Future<Output = Result<ReleaseOutcome, Failure>> + Send {
    // Made here: the future of an async function has room for an argument twice, if that moves.
    let mut repeated = RepeatedRelease {
        server,
        release,
        tries: Tries::default(),
        pause: FIRST_PAUSE,
        answered: None,
        is_over: false,
    };
    async move {
        let replied = repeated.server.release_once(repeated.release.next_try());
        let replied = replied.await;
        let result = repeated.read(replied);
        if repeated.is_over
            && let Some(result) = result
        {
            return result;
        }
        let (sender, receiver) = oneshot::channel();
        let executor = repeated.release.executor.clone();
        executor.start(repeated.continue_to_the_end(sender));
        match result {
            Some(result) => result,
            None => receiver.await.unwrap_or_else(|_| {
                let none = "no certain reply before the lease ended by itself";
                Err(Failure::no_reply(none))
            }),
        }
    }
}

struct RepeatedRelease<S> {
    server: S,
    release: CertainRelease,
    tries: Tries,
    pause: Duration,
    /// When the server had replied for the first time.
    answered: Option<Moment>,
    is_over: bool,
}

/// What came of the tries so far.
#[derive(Default)]
struct Tries {
    all: u32,
    refused: u32,
    /// How many found the server without memory for the result.
    not_stored: u32,
    /// Whether one of them was sent and has no reply.
    may_have_done_it: bool,
}

impl<S: OneServer> RepeatedRelease<S> {
    /// Bounded: see `may_continue`. The receiver is gone if the caller has its result, or does not wait for one.
    async fn continue_to_the_end(
        mut self,
        sender: oneshot::Sender<Result<ReleaseOutcome, Failure>>,
    ) {
        let mut sender = Some(sender);
        while !self.is_over && self.may_continue().await {
            let replied = self.server.release_once(self.release.next_try()).await;
            if let Some(result) = self.read(replied)
                && let Some(sender) = sender.take()
            {
                drop(sender.send(result));
            }
        }
    }

    /// Waits until the next try is due. Returns whether there is to be one.
    ///
    /// A request may sit in a socket of a server that hangs, and a last renewal as well. The tries end when it can take the key no
    /// more. There is one a second while the server does not reply, and 80 for a ttl of an hour after it has.
    async fn may_continue(&mut self) -> bool {
        let (now, patience) = (
            self.release.clock.now(),
            self.release.command_timeout.saturating_mul(5),
        );
        let give_up = self.release.started.after(self.release.ttl + patience);
        if now >= give_up {
            if self.answered.is_none() {
                let key = Shown(&self.release.request.owner.full_key);
                tracing::warn!(%key, "the release got no certain reply before the lease ended by itself");
            }
            return false;
        }
        let longest = self.answered.map_or(LONGEST_PAUSE, |answered| {
            clean_up_pause(now.since(answered))
        });
        self.pause = self.pause.min(longest);
        // The last try is at the end: a copy of the acquire that arrives just before then would otherwise stay for its ttl.
        let until = now.after(jittered(self.pause)).min(give_up);
        self.release.clock.sleep_until(until).await;
        self.pause = self.pause.saturating_mul(2);
        true
    }

    /// Returns the result for the caller, as far as this try shows it, and notes whether there is nothing more to do.
    ///
    /// If the key is not held any more, an earlier try deleted it, or it was taken away. A try deleted it if one was sent without a
    /// reply and the lease cannot have run out.
    ///
    /// A key that ran out before it could be kept for `min_hold` is not set again. Its absence does not say why it is gone. The
    /// reply is the same if an operator freed the lock while only this process was cut off, or another holder took and released it.
    fn read(
        &mut self,
        replied: Result<Released, Failure>,
    ) -> Option<Result<ReleaseOutcome, Failure>> {
        let released = match replied {
            Ok(released) if matches!(released.outcome, ReleaseOutcome::NotStored) => {
                self.not_stored();
                return None;
            }
            Ok(released) => released,
            Err(failure) => return self.failed(failure).map(Err),
        };
        // From here on the result is stored, or the lease was lost. If a late copy of the acquire takes the key now, the next try ends
        // that, but must not store the result again: it may have been forgotten, or be out of date.
        self.release.request.result = None;
        let acquire_in_flight = self.release.request.acquire_in_flight();
        self.is_over = acquire_in_flight.is_settled_by(released.connection);
        if !self.is_over {
            let now = || self.release.clock.now();
            self.answered.get_or_insert_with(now);
        }
        Some(Ok(match released.outcome {
            ReleaseOutcome::NotOurs
                if self.tries.may_have_done_it
                    && self.release.clock.now() < self.release.valid_until =>
            {
                ReleaseOutcome::Released
            }
            ReleaseOutcome::Released if self.tries.not_stored >= MOST_NOT_STORED => {
                ReleaseOutcome::ReleasedWithoutResult
            }
            outcome => outcome,
        }))
    }

    /// The lock is held, and its result is not stored. After some tries the result is given up, since others wait for the lock.
    fn not_stored(&mut self) {
        self.tries.not_stored += 1;
        if self.tries.not_stored >= MOST_NOT_STORED {
            self.release.request.result = None;
        }
    }

    /// Returns the failure if the caller has waited long enough.
    fn failed(&mut self, failure: Failure) -> Option<Failure> {
        let request = &self.release.request;
        tracing::debug!(key = %Shown(&request.owner.full_key), ?failure, tries = self.tries.all, "a release got no reply");
        let tries = &mut self.tries;
        tries.all += 1;
        tries.may_have_done_it |= !failure.is_definite() && !request.in_flight().is_empty();
        tries.refused += u32::from(!failure.is_transient());
        self.is_over = tries.refused >= MOST_REFUSALS;
        // A connection that was closed while idle fails at once, and the next try repairs it. A failure that passes by itself (a
        // slot of a cluster that is being moved) may be over at the next try, too. After a time-out the task has waited long
        // enough.
        let may_pass = failure.is_definite() && failure.is_transient();
        let waited = self.release.clock.now().since(self.release.started);
        let was_enough = tries.all > 1 && !may_pass;
        (was_enough || self.is_over || waited >= self.release.command_timeout).then_some(failure)
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
    use std::sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    };

    use super::*;
    use crate::{
        backend::{
            RunResult,
            in_flight::ConnectionId,
            owner::{Entry, Owner},
        },
        fencing::KnownTokens,
        mode::Mode,
        runtime::{clock::Clock, executor::Executor, tally::Tally},
    };

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
    #[derive(Clone)]
    struct Counting(Arc<AtomicU32>);

    impl OneServer for Counting {
        async fn release_once(&self, _: &Release) -> Result<Released, Failure> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(Released {
                outcome: ReleaseOutcome::Released,
                connection: ConnectionId::new(2),
            })
        }
    }

    fn release_of_an_hour(clock: &Clock, acquired_on: &[u64], open: &Arc<Tally>) -> CertainRelease {
        let started = clock.now();
        let owner = Owner::of_entry(Entry {
            number: 0,
            ttl: HOUR,
            mode: Mode::Exclusive,
        });
        for connection in acquired_on {
            owner.in_flight.note_sent_on(ConnectionId::new(*connection));
        }
        CertainRelease {
            request: Release {
                owner,
                keep: None,
                result: None,
                known_fencing: 0,
                may_be_queued: false,
                at_server: None,
            },
            kept_until: None,
            started,
            ttl: HOUR,
            valid_until: started.after(HOUR),
            known_tokens: Arc::new(KnownTokens::of_clocks(1)),
            executor: Executor::Caller,
            clock: clock.clone(),
            command_timeout: SECOND,
            _open: open.open(),
        }
    }

    /// A server without memory for results, for so many tries. Counts the tries with a result and those without.
    #[derive(Clone)]
    struct Full {
        tries: u32,
        sent: Arc<[AtomicU32; 2]>,
    }

    impl OneServer for Full {
        async fn release_once(&self, request: &Release) -> Result<Released, Failure> {
            let has_result = request.result.is_some();
            let before = self.sent[usize::from(has_result)].fetch_add(1, Ordering::Relaxed);
            Ok(Released {
                outcome: if has_result && before < self.tries {
                    ReleaseOutcome::NotStored
                } else {
                    ReleaseOutcome::Released
                },
                connection: ConnectionId::new(1),
            })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_result_is_tried_three_times_and_then_given_up() {
        let cases = [
            (0, ReleaseOutcome::Released, [0, 1]),
            (2, ReleaseOutcome::Released, [0, 3]),
            (3, ReleaseOutcome::ReleasedWithoutResult, [1, 3]),
            (9, ReleaseOutcome::ReleasedWithoutResult, [1, 3]),
        ];
        for (tries, expected, sent) in cases {
            let open = Arc::<Tally>::default();
            let mut of_a_run = release_of_an_hour(&Clock::tokio(), &[1], &open);
            of_a_run.request.result = Some(RunResult {
                bytes: Arc::from(*b"result"),
                keep: HOUR,
            });
            let server = Full {
                tries,
                sent: Arc::default(),
            };
            let outcome = release(server.clone(), of_a_run).await;
            assert_eq!(outcome.ok(), Some(expected), "{tries}");
            let counted = [0, 1].map(|at| server.sent[at].load(Ordering::Relaxed));
            assert_eq!(counted, sent, "{tries}");
        }
    }

    /// A late copy of the acquire may have taken the key again. By then the result may have been forgotten.
    #[tokio::test(start_paused = true)]
    async fn a_release_that_is_repeated_after_a_reply_stores_no_result() {
        let open = Arc::<Tally>::default();
        let mut of_a_run = release_of_an_hour(&Clock::tokio(), &[1, 2], &open);
        of_a_run.request.result = Some(RunResult {
            bytes: Arc::from(*b"result"),
            keep: HOUR,
        });
        let server = Full {
            tries: 0,
            sent: Arc::default(),
        };
        let outcome = release(server.clone(), of_a_run).await;
        assert_eq!(outcome.ok(), Some(ReleaseOutcome::Released));
        open.emptied().await;
        let [without, with] = [0, 1].map(|at| server.sent[at].load(Ordering::Relaxed));
        assert_eq!(with, 1);
        assert!(without > 0, "it is repeated");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lock_of_an_hour_from_a_connection_that_broke_is_cleaned_up_a_hundred_times_at_most()
    {
        let (count, clock) = (Arc::<AtomicU32>::default(), Clock::tokio());
        let started = clock.now();
        let open = Arc::<Tally>::default();
        let of_an_hour = release_of_an_hour(&clock, &[1, 2], &open);
        let server = Counting(count.clone());
        let outcome = release(server, of_an_hour).await;
        assert_eq!(outcome.ok(), Some(ReleaseOutcome::Released), "the first");
        assert_eq!(open.count(), 1, "a shutdown waits for the others");
        open.emptied().await;
        let (sent, took) = (count.load(Ordering::Relaxed), clock.now().since(started));
        assert!((60..=100).contains(&sent), "{sent} were sent");
        assert!(took >= HOUR, "a copy may come until then");
        assert!(took < HOUR + SECOND * 10, "no copy comes then");
    }
}
