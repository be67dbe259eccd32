//! One owner token on its way: asking for a lock, and taking the request back.
//!
//! An answer that never came is neither yes nor no. So an attempt is armed before its first byte leaves, and disarmed only
//! by a definite answer to every request that left; while it is armed, giving it up has the key released.

use std::{sync::Arc, time::Duration};

use crate::{
    error::LockError,
    fencing::{FencingBlock, FencingToken},
    key::LockKey,
    lock::{
        context::{Engine, validity},
        held::server_lease::Grant,
        release::PendingRelease,
    },
    options::{Terms, Wait},
    runtime::clock::Moment,
    store::{
        Acquire, AcquireOutcome, Acquired, Busy, Expiry, Failure, QueueMode, Renew, Renewed,
        WakeUpMode, grants::QueueEntry, in_flight::InFlight, owner_token::OwnerToken,
    },
};

/// One owner token on its way.
pub(crate) struct Attempt {
    full_key: Arc<str>,
    token: OwnerToken,
    pub(crate) entry: QueueEntry,
    in_flight: Arc<InFlight>,
    queue_mode: QueueMode,
    /// The last ttl asked for, which only grows: for so long a request that is executed late can block others.
    pub(crate) ttl: Duration,
    /// The ttl that a grant by a message certainly has.
    queued_ttl: Duration,
    /// Before the last question left that was answered with "wait" and the counter, or the first one of all: a grant with a
    /// larger token is younger.
    waits_since: Moment,
    /// The largest fencing token that was known then, or given out by then: that of a grant is larger.
    known_since: u64,
    /// Whether a request left that has no definite answer, or an entry is in the queue: the key may be ours without our
    /// knowing.
    armed: bool,
}

/// A question that has left.
#[derive(Clone, Copy)]
pub(crate) struct Question {
    queue_mode: QueueMode,
    ttl: Duration,
    /// Before it was handed over: the server's time starts later than this, never earlier.
    sent: Moment,
    was_armed: bool,
    queue_mode_before: QueueMode,
}

/// What one round ended with.
pub(crate) enum Round {
    Granted(Grant),
    Busy(Busy),
    Failed(Failure),
    /// Granted, but too late to be of use.
    TooSlow(LockError),
    /// Nobody waits any more.
    Deserted,
}

/// What an answer says.
pub(crate) enum Reply {
    /// Ours; but it may be too old to be of use before it is confirmed.
    Granted(Grant),
    Busy(Busy),
    Failed(Failure),
}

impl Attempt {
    pub(crate) fn new(engine: &Engine, full_key: Arc<str>) -> Self {
        let token = engine.owner_tokens.next();
        Self {
            full_key,
            entry: engine.grants.entry(&token),
            token,
            in_flight: Arc::default(),
            queue_mode: QueueMode::DoNotQueue,
            ttl: Duration::ZERO,
            queued_ttl: Duration::ZERO,
            waits_since: Moment::from_nanos(0),
            known_since: 0,
            armed: false,
        }
    }

    /// Sends the request and reads the answer.
    ///
    /// # Cancel safety
    ///
    /// Armed from before the first byte leaves until a definite answer to every request that left.
    pub(crate) async fn ask(&mut self, engine: &Engine, terms: &Terms, tokens: u32) -> Round {
        let (request, question) = self.prepare(engine, terms, tokens);
        let answer = engine.store.acquire(request).await;
        let reply = self.read(engine, question, answer);
        self.make_sure(engine, reply).await
    }

    /// Makes the request, which must be sent then.
    pub(crate) fn prepare(
        &mut self,
        engine: &Engine,
        terms: &Terms,
        tokens: u32,
    ) -> (Acquire, Question) {
        let queue_mode = match (self.queue_mode, terms.wait) {
            (QueueMode::CheckPosition(position), _) => QueueMode::CheckPosition(position),
            (_, Wait::No) => QueueMode::DoNotQueue,
            (_, Wait::For(_) | Wait::Forever) => QueueMode::JoinQueue,
        };
        let question = Question {
            queue_mode,
            ttl: terms.ttl,
            sent: engine.clock.now(),
            was_armed: std::mem::replace(&mut self.armed, true),
            queue_mode_before: self.queue_mode,
        };
        if queue_mode == QueueMode::JoinQueue {
            // Only the first request of its kind may put an entry into the queue without looking for one.
            self.queue_mode = QueueMode::CheckPosition(None);
            self.waits_since = question.sent;
            self.known_since = engine.known_fencing();
            self.queued_ttl = terms.ttl;
        }
        self.ttl = terms.ttl;
        let request = Acquire {
            full_key: self.full_key.clone(),
            token: self.token.clone(),
            ttl: terms.ttl,
            known_fencing: engine.known_fencing(),
            tokens,
            queue_mode,
            entry: self.entry.number(),
            in_flight: self.in_flight.clone(),
        };
        (request, question)
    }

    /// Reads the answer to a request that was sent.
    pub(crate) fn read(
        &mut self,
        engine: &Engine,
        question: Question,
        answer: Result<Acquired, Failure>,
    ) -> Reply {
        let acquired = match answer {
            Ok(acquired) => acquired,
            Err(failure) => {
                if failure.is_definite() || self.in_flight.is_empty() {
                    self.armed = question.was_armed;
                    self.queue_mode = question.queue_mode_before;
                }
                return Reply::Failed(failure);
            }
        };
        if self.in_flight.is_settled_by(acquired.connection) {
            self.in_flight.note_all_answered();
            self.armed = false;
        }
        match acquired.outcome {
            AcquireOutcome::Granted(tokens) => {
                Reply::Granted(self.grant(engine, question.sent, question.ttl, tokens))
            }
            AcquireOutcome::Busy(busy) => {
                if busy.needs_new_token() {
                    // The key, or those of some servers, may hold this token.
                    self.armed = true;
                } else if question.queue_mode != QueueMode::DoNotQueue {
                    self.armed = true;
                    self.queue_mode = QueueMode::CheckPosition(busy.position);
                    if let Some(counter) = busy.counter {
                        // The entry is in the queue, as it was sent. A message of an earlier grant may still be on its way, or
                        // may have come while the question was: its token tells.
                        self.waits_since = question.sent;
                        self.queued_ttl = question.ttl;
                        self.known_since = self.known_since.max(counter);
                    }
                }
                Reply::Busy(busy)
            }
        }
    }

    /// A grant has arrived by a message.
    ///
    /// If its token is larger than the counter was then, it is younger than the last check that was answered with "wait", and
    /// counts from there: so it may look older than it is, and then it is confirmed.
    pub(crate) async fn accept(&mut self, engine: &Engine, fencing: FencingToken) -> Round {
        if u64::from(fencing) <= self.known_since {
            // It ended before the server said "wait": a message can be late, and wait to be read. Or the server has lost its
            // data. Asking again, with the same owner token, takes a larger.
            return Round::Busy(Busy {
                expiry: Expiry::In(Duration::ZERO),
                position: None,
                wake_up: WakeUpMode::Push,
                counter: None,
            });
        }
        let tokens = FencingBlock::new(fencing.into(), 1);
        let grant = self.grant(engine, self.waits_since, self.queued_ttl, tokens);
        self.make_sure(engine, Reply::Granted(grant)).await
    }

    /// Ours until it is handed over. `since` is earlier than the server's word.
    fn grant(
        &mut self,
        engine: &Engine,
        since: Moment,
        ttl: Duration,
        tokens: FencingBlock,
    ) -> Grant {
        self.armed = true;
        engine.learn_fencing(tokens.last());
        Grant {
            full_key: self.full_key.clone(),
            token: self.token.clone(),
            entry: self.entry.number(),
            in_flight: self.in_flight.clone(),
            tokens,
            ttl,
            valid_until: validity(since, ttl),
        }
    }

    /// A grant is of use if at least half of its ttl is left: else it is renewed once, and given up if still short.
    pub(crate) async fn make_sure(&self, engine: &Engine, reply: Reply) -> Round {
        let mut grant = match reply {
            Reply::Granted(grant) => grant,
            Reply::Busy(busy) => return Round::Busy(busy),
            Reply::Failed(failure) => return Round::Failed(failure),
        };
        if grant.is_short(engine) {
            let again = engine.clock.now();
            if let Err(round) = self.confirm(engine, grant.ttl).await {
                return round;
            }
            grant.valid_until = validity(again, grant.ttl);
            if grant.is_short(engine) {
                let took = engine.clock.now().since(again);
                return Round::TooSlow(LockError::invalid(format!(
                    "a round trip to the backend took {took:?}, more than half of the ttl of {:?}: choose a longer ttl",
                    grant.ttl
                )));
            }
        }
        Round::Granted(grant)
    }

    async fn confirm(&self, engine: &Engine, ttl: Duration) -> Result<(), Round> {
        let request = Renew {
            full_key: self.full_key.clone(),
            token: self.token.clone(),
            ttl,
            acquire_in_flight: self.in_flight.clone(),
        };
        let renewed = engine
            .store
            .renew(vec![request], engine.timing.command_timeout)
            .await;
        match renewed.map(|answers| answers.into_iter().next()) {
            Ok(Some(Ok(Renewed::Extended))) => Ok(()),
            // Expired while the answer was on its way: as if it had been busy, and about to be free.
            Ok(Some(Ok(Renewed::NotOurs)) | None) => Err(Round::Busy(Busy {
                expiry: Expiry::In(Duration::ZERO),
                position: None,
                wake_up: WakeUpMode::Push,
                counter: None,
            })),
            Ok(Some(Err(failure))) | Err(failure) => Err(Round::Failed(failure)),
        }
    }

    /// Has the entry taken out of the queue, and the key released, if it may be ours.
    pub(crate) fn take_back(self, engine: &Arc<Engine>, key: &LockKey) {
        if !self.armed {
            return;
        }
        let release = PendingRelease {
            key: key.clone(),
            full_key: self.full_key,
            token: self.token,
            entry: Some(self.entry.number()),
            in_flight: self.in_flight,
            ttl: self.ttl,
            kept_until: None,
            valid_until: engine.clock.now(),
            lost: None,
        };
        release.start(engine, None);
        engine.store.flush();
    }
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use super::*;
    use crate::{
        options::{Defaults, LockOptions},
        runtime::{clock::Clock, executor::Spawner, timer::Alarm},
        store::{in_flight::ConnectionId, memory::MemoryStore, timing::Timing},
    };

    fn engine() -> Engine {
        let clock = Clock::tokio();
        Engine::new(
            Arc::new(MemoryStore::new(clock.clone())),
            Arc::default(),
            Spawner::Caller,
            clock.clone(),
            Alarm::of_the_caller(clock),
            Timing::default(),
        )
    }

    fn wait(counter: Option<u64>) -> Acquired {
        Acquired {
            outcome: AcquireOutcome::Busy(Busy {
                expiry: Expiry::Unknown,
                position: None,
                wake_up: WakeUpMode::Push,
                counter,
            }),
            connection: ConnectionId::LOCAL,
        }
    }

    /// The message of the grant was sent, and the lease ran out, before the server said "wait" again; both are read after that.
    #[tokio::test(start_paused = true)]
    async fn a_message_of_a_grant_that_ended_before_the_last_word_is_not_taken_for_a_new_one() {
        let engine = engine();
        let ttl = Duration::from_secs(3);
        let terms = Terms::new(&LockOptions::new(ttl), Defaults::default()).expect("valid");
        let mut attempt = Attempt::new(&engine, "k".into());
        let ask = |attempt: &mut Attempt, counter| {
            let (_request, question) = attempt.prepare(&engine, &terms, 1);
            drop(attempt.read(&engine, question, Ok(wait(counter))));
        };
        ask(&mut attempt, None);
        tokio::time::advance(ttl).await;
        ask(&mut attempt, Some(100));
        let stale = attempt.accept(&engine, FencingToken::new(100)).await;
        assert!(matches!(stale, Round::Busy(_)));
        let Round::Granted(grant) = attempt.accept(&engine, FencingToken::new(101)).await else {
            panic!("it is younger than the last word");
        };
        assert_eq!(grant.valid_until, validity(engine.clock.now(), ttl));
    }
}
