//! Asks the backend for a key, on behalf of the tasks that stand in its line, and waits for the grant.
//!
//! Its first question is sent by whoever starts it, and answered by a call; from then on, if there is more to do, it is a
//! task of the manager. Each of its awaits may be the last one it sees: of the manager's runtime, never of a user's future.
//! Then [`AcquireLoop`] is dropped, which takes the request back and leaves the line to the next acquire loop.
//!
//! Waiting is one entry in the backend's queue for all tasks of the line. A grant ends it; but a message can be lost, its
//! holder can die, its lock can be another library's. So the acquire loop asks by itself, too: when the holder's lease must have
//! ended, after each new connection, and at each beat.

use std::{sync::Arc, time::Duration};

use tokio::sync::Notify;

use crate::{
    fencing::FencingToken,
    key::LockKey,
    lock::{
        acquire::request::{AcquireReply, AcquireRequest, AcquireResult, SentRequest},
        held::server_lease::Granted,
        key_state::LastReply,
        prefetch,
        registry::{Handed, Registry},
    },
    options::Terms,
    runtime::{clock::Moment, jitter::jittered, tally::Open},
    store::{Acquired, Busy, Expiry, Failure, WakeUpMode},
    telemetry::{self, HandOff},
};

/// The longest pause between two tries while the backend is away.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The shortest pause before asking again for a key that is about to expire.
const SHORTEST_PAUSE: Duration = Duration::from_millis(5);

/// A waiter shows at least this often that it is alive. The backend passes over one that missed two.
const BEAT: Duration = Duration::from_secs(1);

/// How soon after taking a place it is checked for the first time, which tells when the holder's lease ends.
const FIRST_CHECK: Duration = Duration::from_millis(150);

/// Asks for the first time, at once; the caller has it leave, by the backend's `flush`.
///
/// Most locks are free. So there is no task for the first question: its answer is dealt with where it arrives, and only
/// what needs more than that becomes a task.
pub(crate) fn start(registry: &Arc<Registry>, key: &LockKey, signal: Arc<Notify>) {
    let mut acquire_loop = AcquireLoop {
        registry: registry.clone(),
        key: key.clone(),
        signal,
        acquire: None,
        was_busy: false,
        finished: false,
        _in_progress: registry.context.in_progress.open(),
    };
    let Some((terms, behind)) = registry.head(key) else {
        acquire_loop.finished = true;
        return;
    };
    let context = &registry.context;
    let acquire = acquire_loop
        .acquire
        .insert(AcquireRequest::new(context, registry.full_key(key)));
    let (request, sent_request) = acquire.prepare(context, &terms, tokens(behind));
    let then = move |answer| acquire_loop.begin_with(sent_request, answer);
    context.store.acquire_at_once(&request, Box::new(then));
}

/// Tokens ahead are of use only where somebody stands behind.
fn tokens(behind: usize) -> u32 {
    if behind > 0 { prefetch::BLOCK } else { 1 }
}

struct AcquireLoop {
    registry: Arc<Registry>,
    key: LockKey,
    signal: Arc<Notify>,
    acquire: Option<AcquireRequest>,
    /// Whether the server said that somebody else had it.
    was_busy: bool,
    /// Whether the slot has been left in order.
    finished: bool,
    /// A shutdown waits for it.
    _in_progress: Open,
}

/// What cuts a pause short.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WakeUps {
    /// Grants, and new connections: something may have been missed.
    GrantsAndConnections,
    /// The server said that it cannot serve now. A new connection to it is no reason to ask sooner: where each such answer
    /// costs the connection, as a replica's does, waiters would chase each other from one to the next.
    GrantsOnly,
}

/// What a pause ended with.
enum Pause {
    Elapsed,
    Granted(FencingToken),
}

impl AcquireLoop {
    /// Deals with the first answer.
    fn begin_with(mut self, sent_request: SentRequest, answer: Result<Acquired, Failure>) {
        let context = self.registry.context.clone();
        let Some(acquire) = &mut self.acquire else {
            return;
        };
        let reply = match acquire.read(&context, sent_request, answer) {
            AcquireReply::Granted(grant) if !grant.is_short(&context) => {
                match self.hand_over(grant) {
                    None => return,
                    Some(acquire_loop) => {
                        self = acquire_loop;
                        None
                    }
                }
            }
            // It could not be sent at once, or its answer did not come: asking again is safe.
            AcquireReply::Failed(_) => None,
            // It barged in, or has no fencing token: that is undone before anybody hears of it.
            AcquireReply::Busy(busy) if busy.needs_new_token() => {
                if let Some(acquire) = self.acquire.take() {
                    acquire.take_back(&context, &self.key);
                }
                None
            }
            reply => Some(reply),
        };
        context.executor.spawn(self.run(reply));
    }

    async fn run(mut self, mut reply: Option<AcquireReply>) {
        let mut failures = 0_u32;
        // Bounded by those who wait: each has its own patience, and without them the line is empty.
        while let Some((terms, behind)) = self.registry.head(&self.key) {
            let mut wake_ups = WakeUps::GrantsAndConnections;
            let result = match reply.take() {
                Some(reply) => self.make_sure(reply).await,
                None => self.ask(&terms, behind).await,
            };
            let pause = match result {
                AcquireResult::Granted(grant) => match self.hand_over(grant) {
                    Some(acquire_loop) => {
                        self = acquire_loop;
                        continue;
                    }
                    None => return,
                },
                AcquireResult::Busy(busy) => {
                    failures = 0;
                    self.was_busy = true;
                    let until = busy.expiry.moment(self.now(), terms.ttl);
                    if busy.needs_new_token()
                        && let Some(acquire) = self.acquire.take()
                    {
                        // At once, so that two who have a part of the servers each do not keep each other out.
                        acquire.take_back(&self.registry.context, &self.key);
                    }
                    self.registry.tell(&self.key, LastReply::Busy(until));
                    self.checking_pause(&busy)
                }
                AcquireResult::Failed(failure) if failure.is_transient() => {
                    failures += 1;
                    wake_ups = if failure.is_definite() {
                        WakeUps::GrantsOnly
                    } else {
                        WakeUps::GrantsAndConnections
                    };
                    tracing::debug!(key = %self.key, ?failure, failures, "an acquire failed");
                    self.registry
                        .tell(&self.key, LastReply::Failed(failure.into()));
                    self.failure_pause(failures)
                }
                AcquireResult::Failed(failure) => {
                    self.registry.fail_all(&self.key, &failure.into());
                    continue;
                }
                AcquireResult::TooSlow(error) => {
                    self.registry.fail_short_ttls(&self.key, terms.ttl, &error);
                    continue;
                }
                AcquireResult::NoWaiters => continue,
            };
            // Whoever asked only once has been answered: an empty line must not look busy for the length of a pause.
            if self.registry.head(&self.key).is_none() {
                break;
            }
            if let Pause::Granted(fencing) = self.pause(pause, wake_ups).await
                && let AcquireResult::Granted(grant) = self.accept(fencing).await
            {
                match self.hand_over(grant) {
                    Some(acquire_loop) => self = acquire_loop,
                    None => return,
                }
            }
        }
        // Nobody waits: `head` has removed the slot, and dropping `self` takes back what may still be on its way.
        self.finished = true;
    }

    /// Asks once. On an answer that never came the same token serves again: acquiring is idempotent by it.
    async fn ask(&mut self, terms: &Terms, behind: usize) -> AcquireResult {
        let (registry, signal, key) =
            (self.registry.clone(), self.signal.clone(), self.key.clone());
        let context = registry.context.clone();
        // What was asked for before, with a longer ttl, may still block others for so long.
        if let Some(longer) = self.acquire.take_if(|acquire| acquire.ttl > terms.ttl) {
            longer.take_back(&context, &key);
        }
        let acquire = self
            .acquire
            .get_or_insert_with(|| AcquireRequest::new(&context, registry.full_key(&key)));
        tokio::select! {
            biased;
            result = acquire.ask(&context, terms, tokens(behind)) => result,
            // The answer may be on its way. The token stays armed, and the clean-up follows on the same connection.
            () = registry.no_waiters(&key, &signal) => AcquireResult::NoWaiters,
        }
    }

    /// Waits for a grant, at most for so long.
    async fn pause(&self, pause: Duration, wake_ups: WakeUps) -> Pause {
        let clock = &self.registry.context.clock;
        let wake_up = async {
            let Some(acquire) = &self.acquire else {
                return std::future::pending().await;
            };
            loop {
                let wake_up = acquire.entry.wake_up().await;
                if wake_up.is_some() || wake_ups == WakeUps::GrantsAndConnections {
                    return wake_up;
                }
            }
        };
        tokio::select! {
            biased;
            wake_up = wake_up => wake_up.map_or(Pause::Elapsed, Pause::Granted),
            () = self.registry.no_waiters(&self.key, &self.signal) => Pause::Elapsed,
            () = clock.sleep_until(clock.now().after(pause)) => Pause::Elapsed,
        }
    }

    async fn make_sure(&mut self, reply: AcquireReply) -> AcquireResult {
        let (registry, signal, key) =
            (self.registry.clone(), self.signal.clone(), self.key.clone());
        let Some(acquire) = &self.acquire else {
            return AcquireResult::NoWaiters;
        };
        tokio::select! {
            biased;
            result = acquire.make_sure(&registry.context, reply) => result,
            () = registry.no_waiters(&key, &signal) => AcquireResult::NoWaiters,
        }
    }

    /// A grant has arrived.
    async fn accept(&mut self, fencing: FencingToken) -> AcquireResult {
        let (registry, signal, key) =
            (self.registry.clone(), self.signal.clone(), self.key.clone());
        let context = registry.context.clone();
        let Some(acquire) = &mut self.acquire else {
            return AcquireResult::NoWaiters;
        };
        tokio::select! {
            biased;
            result = acquire.accept(&context, fencing) => result,
            () = registry.no_waiters(&key, &signal) => AcquireResult::NoWaiters,
        }
    }

    /// Hands a grant to whoever is next; returns itself if there is more to do.
    fn hand_over(mut self, grant: Granted) -> Option<Self> {
        match self.registry.hand_to_waiter(&self.key, grant) {
            Handed::Taken => {
                if self.was_busy {
                    telemetry::handed_on(&self.key, HandOff::Remote);
                }
                self.acquire = None;
                self.finished = true;
                None
            }
            Handed::NoWaiter => {
                // Dropping `self` gives it back.
                self.finished = true;
                None
            }
            // It is ours, and asking again with the same token gives it the other ttl.
            Handed::OtherTtl => Some(self),
        }
    }

    /// Until the place is to be checked: at a beat, or when the holder's lease must have ended. Where no grant will come,
    /// after the pause of the builder.
    fn checking_pause(&self, busy: &Busy) -> Duration {
        let pause = match (busy.wake_up, busy.expiry) {
            (WakeUpMode::Push, Expiry::Unknown) => jittered(FIRST_CHECK),
            // Sooner than the beat, so that two late ones are not yet two missed ones.
            (WakeUpMode::Push, _) => BEAT * 4 / 5 + jittered(BEAT / 10),
            _ => jittered(self.registry.context.timing.polling_pause),
        };
        match busy.expiry {
            // One millisecond more, since the server counts in whole ones.
            Expiry::In(left) => pause
                .min(left + Duration::from_millis(1))
                .max(SHORTEST_PAUSE),
            Expiry::Never | Expiry::Unknown => pause,
        }
    }

    fn failure_pause(&self, failures: u32) -> Duration {
        let doubled = self
            .registry
            .context
            .timing
            .polling_pause
            .saturating_mul(2_u32.pow(failures.min(6)));
        jittered(doubled.min(LONGEST_PAUSE))
    }

    fn now(&self) -> Moment {
        self.registry.context.clock.now()
    }
}

impl Drop for AcquireLoop {
    fn drop(&mut self) {
        if let Some(acquire) = self.acquire.take() {
            acquire.take_back(&self.registry.context, &self.key);
        }
        if !self.finished {
            self.registry.abandon_acquire(&self.key);
        }
    }
}

impl Expiry {
    /// Until when a lock is busy, as far as is known; `None`: without an expiry.
    fn moment(self, now: Moment, guess: Duration) -> Option<Moment> {
        match self {
            Self::In(left) => Some(now.after(left)),
            Self::Never => None,
            Self::Unknown => Some(now.after(guess)),
        }
    }
}
