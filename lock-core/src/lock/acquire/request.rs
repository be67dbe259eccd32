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
        context::{Context, validity},
        held::server_lease::Granted,
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
pub(crate) struct AcquireRequest {
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
pub(crate) struct SentRequest {
    queue_mode: QueueMode,
    ttl: Duration,
    /// Before it was handed over: the server's time starts later than this, never earlier.
    sent: Moment,
    was_armed: bool,
    queue_mode_before: QueueMode,
}

/// What one round ended with.
pub(crate) enum AcquireResult {
    Granted(Granted),
    Busy(Busy),
    Failed(Failure),
    /// Granted, but too late to be of use.
    TooSlow(LockError),
    /// Nobody waits any more.
    NoWaiters,
}

/// What an answer says.
pub(crate) enum AcquireReply {
    /// Ours; but it may be too old to be of use before it is confirmed.
    Granted(Granted),
    Busy(Busy),
    Failed(Failure),
}

impl AcquireRequest {
    pub(crate) fn new(context: &Context, full_key: Arc<str>) -> Self {
        let token = context.owner_tokens.next();
        Self {
            full_key,
            entry: context.grants.entry(&token),
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
    pub(crate) async fn ask(
        &mut self,
        context: &Context,
        terms: &Terms,
        tokens: u32,
    ) -> AcquireResult {
        let (request, sent_request) = self.prepare(context, terms, tokens);
        let answer = context.store.acquire(request).await;
        let reply = self.read(context, sent_request, answer);
        self.make_sure(context, reply).await
    }

    /// Makes the request, which must be sent then.
    pub(crate) fn prepare(
        &mut self,
        context: &Context,
        terms: &Terms,
        tokens: u32,
    ) -> (Acquire, SentRequest) {
        let queue_mode = match (self.queue_mode, terms.wait) {
            (QueueMode::CheckPosition(position), _) => QueueMode::CheckPosition(position),
            (_, Wait::No) => QueueMode::DoNotQueue,
            (_, Wait::For(_) | Wait::Forever) => QueueMode::JoinQueue,
        };
        let sent_request = SentRequest {
            queue_mode,
            ttl: terms.ttl,
            sent: context.clock.now(),
            was_armed: std::mem::replace(&mut self.armed, true),
            queue_mode_before: self.queue_mode,
        };
        if queue_mode == QueueMode::JoinQueue {
            // Only the first request of its kind may put an entry into the queue without looking for one.
            self.queue_mode = QueueMode::CheckPosition(None);
            self.waits_since = sent_request.sent;
            self.known_since = context.known_fencing();
            self.queued_ttl = terms.ttl;
        }
        self.ttl = terms.ttl;
        let request = Acquire {
            full_key: self.full_key.clone(),
            token: self.token.clone(),
            ttl: terms.ttl,
            known_fencing: context.known_fencing(),
            tokens,
            queue_mode,
            entry: self.entry.number(),
            in_flight: self.in_flight.clone(),
        };
        (request, sent_request)
    }

    /// Reads the answer to a request that was sent.
    pub(crate) fn read(
        &mut self,
        context: &Context,
        sent_request: SentRequest,
        answer: Result<Acquired, Failure>,
    ) -> AcquireReply {
        let acquired = match answer {
            Ok(acquired) => acquired,
            Err(failure) => {
                if failure.is_definite() || self.in_flight.is_empty() {
                    self.armed = sent_request.was_armed;
                    self.queue_mode = sent_request.queue_mode_before;
                }
                return AcquireReply::Failed(failure);
            }
        };
        if self.in_flight.is_settled_by(acquired.connection) {
            self.in_flight.note_all_answered();
            self.armed = false;
        }
        match acquired.outcome {
            AcquireOutcome::Granted(tokens) => AcquireReply::Granted(self.grant(
                context,
                sent_request.sent,
                sent_request.ttl,
                tokens,
            )),
            AcquireOutcome::Busy(busy) => {
                if busy.needs_new_token() {
                    // The key, or those of some servers, may hold this token.
                    self.armed = true;
                } else if sent_request.queue_mode != QueueMode::DoNotQueue {
                    self.armed = true;
                    self.queue_mode = QueueMode::CheckPosition(busy.position);
                    if let Some(counter) = busy.counter {
                        // The entry is in the queue, as it was sent. A message of an earlier grant may still be on its way, or
                        // may have come while the question was: its token tells.
                        self.waits_since = sent_request.sent;
                        self.queued_ttl = sent_request.ttl;
                        self.known_since = self.known_since.max(counter);
                    }
                }
                AcquireReply::Busy(busy)
            }
        }
    }

    /// A grant has arrived by a message.
    ///
    /// If its token is larger than the counter was then, it is younger than the last check that was answered with "wait", and
    /// counts from there: so it may look older than it is, and then it is confirmed.
    pub(crate) async fn accept(
        &mut self,
        context: &Context,
        fencing: FencingToken,
    ) -> AcquireResult {
        if u64::from(fencing) <= self.known_since {
            // It ended before the server said "wait": a message can be late, and wait to be read. Or the server has lost its
            // data. Asking again, with the same owner token, takes a larger.
            return AcquireResult::Busy(Busy {
                expiry: Expiry::In(Duration::ZERO),
                position: None,
                wake_up: WakeUpMode::Push,
                counter: None,
            });
        }
        let tokens = FencingBlock::new(fencing.into(), 1);
        let grant = self.grant(context, self.waits_since, self.queued_ttl, tokens);
        self.make_sure(context, AcquireReply::Granted(grant)).await
    }

    /// Ours until it is handed over. `since` is earlier than the server's word.
    fn grant(
        &mut self,
        context: &Context,
        since: Moment,
        ttl: Duration,
        tokens: FencingBlock,
    ) -> Granted {
        self.armed = true;
        context.learn_fencing(tokens.last());
        Granted {
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
    pub(crate) async fn make_sure(&self, context: &Context, reply: AcquireReply) -> AcquireResult {
        let mut grant = match reply {
            AcquireReply::Granted(grant) => grant,
            AcquireReply::Busy(busy) => return AcquireResult::Busy(busy),
            AcquireReply::Failed(failure) => return AcquireResult::Failed(failure),
        };
        if grant.is_short(context) {
            let again = context.clock.now();
            if let Err(result) = self.confirm(context, grant.ttl).await {
                return result;
            }
            grant.valid_until = validity(again, grant.ttl);
            if grant.is_short(context) {
                let took = context.clock.now().since(again);
                return AcquireResult::TooSlow(LockError::invalid(format!(
                    "a round trip to the backend took {took:?}, more than half of the ttl of {:?}: choose a longer ttl",
                    grant.ttl
                )));
            }
        }
        AcquireResult::Granted(grant)
    }

    async fn confirm(&self, context: &Context, ttl: Duration) -> Result<(), AcquireResult> {
        let request = Renew {
            full_key: self.full_key.clone(),
            token: self.token.clone(),
            ttl,
            acquire_in_flight: self.in_flight.clone(),
        };
        let renewed = context
            .store
            .renew(vec![request], context.timing.command_timeout)
            .await;
        match renewed.map(|answers| answers.into_iter().next()) {
            Ok(Some(Ok(Renewed::Extended))) => Ok(()),
            // Expired while the answer was on its way: as if it had been busy, and about to be free.
            Ok(Some(Ok(Renewed::NotOurs)) | None) => Err(AcquireResult::Busy(Busy {
                expiry: Expiry::In(Duration::ZERO),
                position: None,
                wake_up: WakeUpMode::Push,
                counter: None,
            })),
            Ok(Some(Err(failure))) | Err(failure) => Err(AcquireResult::Failed(failure)),
        }
    }

    /// Has the entry taken out of the queue, and the key released, if it may be ours.
    pub(crate) fn take_back(self, context: &Arc<Context>, key: &LockKey) {
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
            valid_until: context.clock.now(),
            lost: None,
        };
        release.start(context, None);
        context.store.flush();
    }
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use super::*;
    use crate::{
        options::{Defaults, LockOptions},
        runtime::{clock::Clock, executor::Executor, timer::Timer},
        store::{in_flight::ConnectionId, memory::MemoryStore, timing::Timing},
    };

    fn context() -> Context {
        let clock = Clock::tokio();
        Context::new(
            Arc::new(MemoryStore::new(clock.clone())),
            Arc::default(),
            Executor::Caller,
            clock.clone(),
            Timer::of_the_caller(clock),
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
        let context = context();
        let ttl = Duration::from_secs(3);
        let terms = Terms::new(&LockOptions::new(ttl), Defaults::default()).expect("valid");
        let mut acquire = AcquireRequest::new(&context, "k".into());
        let ask = |acquire: &mut AcquireRequest, counter| {
            let (_request, sent_request) = acquire.prepare(&context, &terms, 1);
            drop(acquire.read(&context, sent_request, Ok(wait(counter))));
        };
        ask(&mut acquire, None);
        tokio::time::advance(ttl).await;
        ask(&mut acquire, Some(100));
        let stale = acquire.accept(&context, FencingToken::new(100)).await;
        assert!(matches!(stale, AcquireResult::Busy(_)));
        let AcquireResult::Granted(grant) = acquire.accept(&context, FencingToken::new(101)).await
        else {
            panic!("it is younger than the last word");
        };
        assert_eq!(grant.valid_until, validity(context.clock.now(), ttl));
    }
}
