//! Asks the backend for a key, on behalf of the tasks that stand in its line, and waits for the grant.
//!
//! Its first question is sent by whoever starts it, and answered by a call; from then on, if there is more to do, it is a
//! task of the manager. Each of its awaits may be the last one it sees: of the manager's runtime, never of a user's future.
//! Then [`Seeker`] is dropped, which takes the request back and leaves the line to the next seeker.
//!
//! Waiting is one entry in the backend's queue for all tasks of the line. A grant ends it; but a message can be lost, its
//! holder can die, its lock can be another library's. So the seeker asks by itself, too: when the holder's lease must have
//! ended, after each new connection, and at each beat.

use std::{sync::Arc, time::Duration};

use tokio::sync::Notify;

use crate::{
    fencing::FencingToken,
    key::LockKey,
    lock::{
        acquire::request::{Attempt, Question, Reply, Round},
        held::server_lease::Grant,
        key_state::LastWord,
        prefetch,
        registry::{Arbiter, Offered},
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
pub(crate) fn start(arbiter: &Arc<Arbiter>, key: &LockKey, signal: Arc<Notify>) {
    let mut seeker = Seeker {
        arbiter: arbiter.clone(),
        key: key.clone(),
        signal,
        attempt: None,
        was_busy: false,
        finished: false,
        _on_its_way: arbiter.engine.on_its_way.open(),
    };
    let Some((terms, behind)) = arbiter.head(key) else {
        seeker.finished = true;
        return;
    };
    let engine = &arbiter.engine;
    let attempt = seeker
        .attempt
        .insert(Attempt::new(engine, arbiter.full_key(key)));
    let (request, question) = attempt.prepare(engine, &terms, tokens(behind));
    let then = move |answer| seeker.begin_with(question, answer);
    engine.store.acquire_at_once(&request, Box::new(then));
}

/// Tokens ahead are of use only where somebody stands behind.
fn tokens(behind: usize) -> u32 {
    if behind > 0 { prefetch::BLOCK } else { 1 }
}

struct Seeker {
    arbiter: Arc<Arbiter>,
    key: LockKey,
    signal: Arc<Notify>,
    attempt: Option<Attempt>,
    /// Whether the server said that somebody else had it.
    was_busy: bool,
    /// Whether the slot has been left in order.
    finished: bool,
    /// A shutdown waits for it.
    _on_its_way: Open,
}

/// What cuts a pause short.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Heeds {
    /// Grants, and new connections: something may have been missed.
    All,
    /// The server said that it cannot serve now. A new connection to it is no reason to ask sooner: where each such answer
    /// costs the connection, as a replica's does, waiters would chase each other from one to the next.
    Grants,
}

/// What a pause ended with.
enum Pause {
    Over,
    Granted(FencingToken),
}

impl Seeker {
    /// Deals with the first answer.
    fn begin_with(mut self, question: Question, answer: Result<Acquired, Failure>) {
        let engine = self.arbiter.engine.clone();
        let Some(attempt) = &mut self.attempt else {
            return;
        };
        let reply = match attempt.read(&engine, question, answer) {
            Reply::Granted(grant) if !grant.is_short(&engine) => match self.hand_over(grant) {
                None => return,
                Some(seeker) => {
                    self = seeker;
                    None
                }
            },
            // It could not be sent at once, or its answer did not come: asking again is safe.
            Reply::Failed(_) => None,
            // It barged in, or has no fencing token: that is undone before anybody hears of it.
            Reply::Busy(busy) if busy.needs_new_token() => {
                if let Some(attempt) = self.attempt.take() {
                    attempt.take_back(&engine, &self.key);
                }
                None
            }
            reply => Some(reply),
        };
        engine.spawner.spawn(self.run(reply));
    }

    async fn run(mut self, mut reply: Option<Reply>) {
        let mut failures = 0_u32;
        // Bounded by those who wait: each has its own patience, and without them the line is empty.
        while let Some((terms, behind)) = self.arbiter.head(&self.key) {
            let mut heeds = Heeds::All;
            let round = match reply.take() {
                Some(reply) => self.make_sure(reply).await,
                None => self.ask(&terms, behind).await,
            };
            let pause = match round {
                Round::Granted(grant) => match self.hand_over(grant) {
                    Some(seeker) => {
                        self = seeker;
                        continue;
                    }
                    None => return,
                },
                Round::Busy(busy) => {
                    failures = 0;
                    self.was_busy = true;
                    let until = busy.expiry.moment(self.now(), terms.ttl);
                    if busy.needs_new_token()
                        && let Some(attempt) = self.attempt.take()
                    {
                        // At once, so that two who have a part of the servers each do not keep each other out.
                        attempt.take_back(&self.arbiter.engine, &self.key);
                    }
                    self.arbiter.tell(&self.key, LastWord::Busy(until));
                    self.checking_pause(&busy)
                }
                Round::Failed(failure) if failure.is_transient() => {
                    failures += 1;
                    heeds = if failure.is_definite() {
                        Heeds::Grants
                    } else {
                        Heeds::All
                    };
                    tracing::debug!(key = %self.key, ?failure, failures, "an acquire failed");
                    self.arbiter
                        .tell(&self.key, LastWord::Failed(failure.into()));
                    self.failure_pause(failures)
                }
                Round::Failed(failure) => {
                    self.arbiter.tell_all(&self.key, &failure.into());
                    continue;
                }
                Round::TooSlow(error) => {
                    self.arbiter.tell_short(&self.key, terms.ttl, &error);
                    continue;
                }
                Round::Deserted => continue,
            };
            // Whoever asked only once has been answered: an empty line must not look busy for the length of a pause.
            if self.arbiter.head(&self.key).is_none() {
                break;
            }
            if let Pause::Granted(fencing) = self.pause(pause, heeds).await
                && let Round::Granted(grant) = self.accept(fencing).await
            {
                match self.hand_over(grant) {
                    Some(seeker) => self = seeker,
                    None => return,
                }
            }
        }
        // Nobody waits: `head` has removed the slot, and dropping `self` takes back what may still be on its way.
        self.finished = true;
    }

    /// Asks once. On an answer that never came the same token serves again: acquiring is idempotent by it.
    async fn ask(&mut self, terms: &Terms, behind: usize) -> Round {
        let (arbiter, signal, key) = (self.arbiter.clone(), self.signal.clone(), self.key.clone());
        let engine = arbiter.engine.clone();
        // What was asked for before, with a longer ttl, may still block others for so long.
        if let Some(longer) = self.attempt.take_if(|attempt| attempt.ttl > terms.ttl) {
            longer.take_back(&engine, &key);
        }
        let attempt = self
            .attempt
            .get_or_insert_with(|| Attempt::new(&engine, arbiter.full_key(&key)));
        tokio::select! {
            biased;
            round = attempt.ask(&engine, terms, tokens(behind)) => round,
            // The answer may be on its way. The token stays armed, and the clean-up follows on the same connection.
            () = arbiter.deserted(&key, &signal) => Round::Deserted,
        }
    }

    /// Waits for a grant, at most for so long.
    async fn pause(&self, pause: Duration, heeds: Heeds) -> Pause {
        let clock = &self.arbiter.engine.clock;
        let wake_up = async {
            let Some(attempt) = &self.attempt else {
                return std::future::pending().await;
            };
            loop {
                let wake_up = attempt.entry.wake_up().await;
                if wake_up.is_some() || heeds == Heeds::All {
                    return wake_up;
                }
            }
        };
        tokio::select! {
            biased;
            wake_up = wake_up => wake_up.map_or(Pause::Over, Pause::Granted),
            () = self.arbiter.deserted(&self.key, &self.signal) => Pause::Over,
            () = clock.sleep_until(clock.now().after(pause)) => Pause::Over,
        }
    }

    async fn make_sure(&mut self, reply: Reply) -> Round {
        let (arbiter, signal, key) = (self.arbiter.clone(), self.signal.clone(), self.key.clone());
        let Some(attempt) = &self.attempt else {
            return Round::Deserted;
        };
        tokio::select! {
            biased;
            round = attempt.make_sure(&arbiter.engine, reply) => round,
            () = arbiter.deserted(&key, &signal) => Round::Deserted,
        }
    }

    /// A grant has arrived.
    async fn accept(&mut self, fencing: FencingToken) -> Round {
        let (arbiter, signal, key) = (self.arbiter.clone(), self.signal.clone(), self.key.clone());
        let engine = arbiter.engine.clone();
        let Some(attempt) = &mut self.attempt else {
            return Round::Deserted;
        };
        tokio::select! {
            biased;
            round = attempt.accept(&engine, fencing) => round,
            () = arbiter.deserted(&key, &signal) => Round::Deserted,
        }
    }

    /// Hands a grant to whoever is next; returns itself if there is more to do.
    fn hand_over(mut self, grant: Grant) -> Option<Self> {
        match self.arbiter.offer(&self.key, grant) {
            Offered::Taken => {
                if self.was_busy {
                    telemetry::handed_on(&self.key, HandOff::Remote);
                }
                self.attempt = None;
                self.finished = true;
                None
            }
            Offered::ToNobody => {
                // Dropping `self` gives it back.
                self.finished = true;
                None
            }
            // It is ours, and asking again with the same token gives it the other ttl.
            Offered::Unlike => Some(self),
        }
    }

    /// Until the place is to be checked: at a beat, or when the holder's lease must have ended. Where no grant will come,
    /// after the pause of the builder.
    fn checking_pause(&self, busy: &Busy) -> Duration {
        let pause = match (busy.wake_up, busy.expiry) {
            (WakeUpMode::Push, Expiry::Unknown) => jittered(FIRST_CHECK),
            // Sooner than the beat, so that two late ones are not yet two missed ones.
            (WakeUpMode::Push, _) => BEAT * 4 / 5 + jittered(BEAT / 10),
            _ => jittered(self.arbiter.engine.timing.polling_pause),
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
            .arbiter
            .engine
            .timing
            .polling_pause
            .saturating_mul(2_u32.pow(failures.min(6)));
        jittered(doubled.min(LONGEST_PAUSE))
    }

    fn now(&self) -> Moment {
        self.arbiter.engine.clock.now()
    }
}

impl Drop for Seeker {
    fn drop(&mut self) {
        if let Some(attempt) = self.attempt.take() {
            attempt.take_back(&self.arbiter.engine, &self.key);
        }
        if !self.finished {
            self.arbiter.orphan(&self.key);
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
