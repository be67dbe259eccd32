//! Asks the backend for a key, on behalf of the tasks that stand in its line.
//!
//! Runs as the manager's own work. Each of its awaits may be the last one it sees: of the manager's runtime, never of a
//! user's future. Then [`Seeker`] is dropped, which takes the request back and leaves the line to the next seeker.

use std::{sync::Arc, time::Duration};

use tokio::sync::Notify;

use crate::{
    arbiter::{Arbiter, LastWord},
    backend::{AcquireOutcome, AcquireRequest, Failure},
    clock::Moment,
    engine::{Engine, jittered, validity},
    error::LockError,
    key::LockKey,
    lease::Grant,
    line::Waiter,
    release::Release,
    token::{FencingToken, OwnerToken},
    trail::Trail,
};

/// The longest pause between two tries while the backend is away.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The shortest pause before asking again for a key that is about to expire.
const SHORTEST_PAUSE: Duration = Duration::from_millis(5);

pub(crate) fn start(arbiter: &Arc<Arbiter>, key: &LockKey, signal: Arc<Notify>) {
    let seeker = Seeker {
        arbiter: arbiter.clone(),
        key: key.clone(),
        signal,
        attempt: None,
        finished: false,
    };
    arbiter.engine.spawner.spawn(seeker.run());
}

struct Seeker {
    arbiter: Arc<Arbiter>,
    key: LockKey,
    signal: Arc<Notify>,
    attempt: Option<Attempt>,
    /// Whether the slot has been left in order.
    finished: bool,
}

/// One owner token on its way.
struct Attempt {
    full_key: Arc<str>,
    token: OwnerToken,
    trail: Arc<Trail>,
    /// The longest ttl asked for so far: for so long a request that is executed late can block others.
    longest_ttl: Duration,
    /// Whether a request left that has no definite answer, so that the key may be ours without our knowing.
    armed: bool,
}

/// What one round ended with.
enum Round {
    Granted(Grant),
    Busy(Option<Duration>),
    Failed(Failure),
    /// Granted, but too late to be of use.
    TooSlow(LockError),
    /// Nobody waits any more.
    Deserted,
}

impl Seeker {
    async fn run(mut self) {
        let mut failures = 0_u32;
        // Bounded by those who wait: each has its own patience, and without them the line is empty.
        while let Some(head) = self.arbiter.head(&self.key) {
            let pause = match self.round(&head).await {
                Round::Granted(grant) => return self.hand_over(grant),
                Round::Busy(remaining) => {
                    failures = 0;
                    let until = remaining.map(|left| self.now().after(left));
                    self.arbiter.tell(&self.key, LastWord::Busy(until));
                    self.polling_pause(remaining)
                }
                Round::Failed(failure) if failure.is_transient() => {
                    failures += 1;
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
                    self.arbiter.tell_all(&self.key, &error);
                    continue;
                }
                Round::Deserted => continue,
            };
            // Whoever asked only once has been answered: an empty line must not look busy for the length of a pause.
            if self.arbiter.head(&self.key).is_none() {
                break;
            }
            self.pause(pause).await;
        }
        // Nobody waits: `head` has removed the slot, and dropping `self` takes back what may still be on its way.
        self.finished = true;
    }

    /// Asks once. On an answer that never came the same token serves again: acquiring is idempotent by it.
    async fn round(&mut self, head: &Waiter) -> Round {
        let (arbiter, signal, key) = (self.arbiter.clone(), self.signal.clone(), self.key.clone());
        let engine = arbiter.engine.clone();
        let attempt = self
            .attempt
            .get_or_insert_with(|| Attempt::new(&engine, head.full_key.clone()));
        tokio::select! {
            biased;
            round = attempt.ask(&engine, head.terms.ttl) => round,
            // The answer may be on its way. The token stays armed, and the clean-up follows on the same connection.
            () = arbiter.deserted(&key, &signal) => Round::Deserted,
        }
    }

    fn hand_over(mut self, grant: Grant) {
        self.finished = true;
        let ttl = self
            .attempt
            .take()
            .map_or(Duration::ZERO, |attempt| attempt.longest_ttl);
        if let Err(grant) = self.arbiter.offer(&self.key, grant) {
            release(&self.arbiter.engine, &self.key, grant, ttl);
        }
    }

    async fn pause(&self, pause: Duration) {
        let clock = &self.arbiter.engine.clock;
        tokio::select! {
            () = clock.sleep_until(clock.now().after(pause)) => {}
            () = self.arbiter.deserted(&self.key, &self.signal) => {}
        }
    }

    /// Until the holder's lease ends, but no longer than the pause of the builder: it may be released before.
    fn polling_pause(&self, remaining: Option<Duration>) -> Duration {
        let pause = jittered(self.arbiter.engine.timing.polling_pause);
        // One millisecond more, since the server counts in whole ones.
        let expiry = remaining.map(|left| left + Duration::from_millis(1));
        expiry.map_or(pause, |expiry| pause.min(expiry).max(SHORTEST_PAUSE))
    }

    fn failure_pause(&self, failures: u32) -> Duration {
        let doubled = self.arbiter.engine.timing.polling_pause * 2_u32.pow(failures.min(6));
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

impl Attempt {
    fn new(engine: &Engine, full_key: Arc<str>) -> Self {
        Self {
            full_key,
            token: OwnerToken::new(&engine.label),
            trail: Arc::default(),
            longest_ttl: Duration::ZERO,
            armed: false,
        }
    }

    /// Sends the request and reads the answer.
    ///
    /// # Cancel safety
    ///
    /// Armed from before the first byte leaves until a definite answer to every request that left.
    async fn ask(&mut self, engine: &Engine, ttl: Duration) -> Round {
        self.longest_ttl = self.longest_ttl.max(ttl);
        let was_armed = std::mem::replace(&mut self.armed, true);
        // Before the request is handed over: the server's time starts later than this, never earlier.
        let sent = engine.clock.now();
        let request = AcquireRequest {
            full_key: self.full_key.clone(),
            token: self.token.clone(),
            ttl,
            floor: engine.known_token(),
            trail: self.trail.clone(),
        };
        match engine.backend.acquire(request).await {
            Ok(acquired) => {
                self.armed = !self.trail.is_settled_by(acquired.connection);
                match acquired.outcome {
                    AcquireOutcome::Granted(fencing) => {
                        self.granted(engine, sent, ttl, fencing).await
                    }
                    AcquireOutcome::Busy { remaining } => Round::Busy(remaining),
                }
            }
            Err(failure) => {
                if failure.is_definite() || self.trail.is_empty() {
                    self.armed = was_armed;
                }
                Round::Failed(failure)
            }
        }
    }

    /// A grant is of use if at least half of its ttl is left: it is renewed once, and given up if still short.
    async fn granted(
        &mut self,
        engine: &Engine,
        sent: Moment,
        ttl: Duration,
        fencing: FencingToken,
    ) -> Round {
        // Ours until it is handed over.
        self.armed = true;
        engine.learn_token(fencing);
        let mut grant = Grant {
            full_key: self.full_key.clone(),
            token: self.token.clone(),
            fencing,
            trail: self.trail.clone(),
            valid_until: validity(sent, ttl),
        };
        if is_short(&grant, engine, ttl) {
            let again = engine.clock.now();
            if let Err(round) = self.extend(engine, ttl).await {
                return round;
            }
            grant.valid_until = validity(again, ttl);
            if is_short(&grant, engine, ttl) {
                let took = engine.clock.now().since(again);
                return Round::TooSlow(LockError::invalid(format!(
                    "a round trip to the backend took {took:?}, more than half of the ttl of {ttl:?}: choose a longer ttl"
                )));
            }
        }
        Round::Granted(grant)
    }

    async fn extend(&self, engine: &Engine, ttl: Duration) -> Result<(), Round> {
        let request = crate::backend::RenewRequest {
            full_key: self.full_key.clone(),
            token: self.token.clone(),
            ttl,
        };
        let renewed = engine
            .backend
            .renew(vec![request], engine.timing.command_timeout)
            .await;
        match renewed.map(|answers| answers.into_iter().next()) {
            Ok(Some(Ok(crate::backend::Renewed::Yes))) => Ok(()),
            // Expired while the answer was on its way: as if it had been busy.
            Ok(Some(Ok(crate::backend::Renewed::NotOurs)) | None) => {
                Err(Round::Busy(Some(Duration::ZERO)))
            }
            Ok(Some(Err(failure))) | Err(failure) => Err(Round::Failed(failure)),
        }
    }

    /// Has the key released, if it may be ours.
    fn take_back(self, engine: &Arc<Engine>, key: &LockKey) {
        if !self.armed || self.trail.is_empty() {
            return;
        }
        let grant = Grant {
            full_key: self.full_key,
            token: self.token,
            fencing: FencingToken::new(0),
            trail: self.trail,
            valid_until: engine.clock.now(),
        };
        release(engine, key, grant, self.longest_ttl);
    }
}

fn is_short(grant: &Grant, engine: &Engine, ttl: Duration) -> bool {
    grant.valid_until.since(engine.clock.now()) < ttl / 2
}

/// Gives back what nobody took.
fn release(engine: &Arc<Engine>, key: &LockKey, grant: Grant, ttl: Duration) {
    let release = Release {
        key: key.clone(),
        full_key: grant.full_key,
        token: grant.token,
        trail: grant.trail,
        ttl,
        kept_until: None,
        valid_until: grant.valid_until,
        lost: None,
    };
    release.start(engine, engine.open.open(), None);
}
