//! One owner token on its way: asking for a lock, and taking the request back.
//!
//! An answer that never came is neither yes nor no. So an attempt is armed before its first byte leaves, and disarmed only
//! by a definite answer to every request that left; while it is armed, giving it up has the key released.

use std::{sync::Arc, time::Duration};

use crate::{
    backend::{
        AcquireOutcome, AcquireRequest, Asks, Busy, Comes, Expiry, Failure, RenewRequest, Renewed,
    },
    clock::Moment,
    engine::{Engine, validity},
    error::LockError,
    grants::Entry,
    key::LockKey,
    options::{Terms, Wait},
    release::Release,
    tenure::Grant,
    token::{FencingBlock, FencingToken, OwnerToken},
    trail::Trail,
};

/// One owner token on its way.
pub(crate) struct Attempt {
    full_key: Arc<str>,
    token: OwnerToken,
    pub(crate) entry: Entry,
    trail: Arc<Trail>,
    asks: Asks,
    /// The last ttl asked for, which only grows: for so long a request that is executed late can block others.
    pub(crate) ttl: Duration,
    /// The ttl that a grant by a message certainly has.
    queued_ttl: Duration,
    /// Before the last question left that was answered with "wait", or the first one of all: a grant is younger.
    waits_since: Moment,
    /// Whether a request left that has no definite answer, or an entry is in the queue: the key may be ours without our
    /// knowing.
    armed: bool,
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

impl Attempt {
    pub(crate) fn new(engine: &Engine, full_key: Arc<str>) -> Self {
        Self {
            full_key,
            token: OwnerToken::new(&engine.label),
            entry: engine.grants.entry(),
            trail: Arc::default(),
            asks: Asks::Once,
            ttl: Duration::ZERO,
            queued_ttl: Duration::ZERO,
            waits_since: Moment::from_nanos(0),
            armed: false,
        }
    }

    /// Sends the request and reads the answer.
    ///
    /// # Cancel safety
    ///
    /// Armed from before the first byte leaves until a definite answer to every request that left.
    pub(crate) async fn ask(&mut self, engine: &Engine, terms: &Terms, tokens: u32) -> Round {
        let asks = match (self.asks, terms.wait) {
            (Asks::AfterIts(place), _) => Asks::AfterIts(place),
            (_, Wait::No) => Asks::Once,
            (_, Wait::For(_) | Wait::Forever) => Asks::ToWait,
        };
        let was_armed = std::mem::replace(&mut self.armed, true);
        // Before the request is handed over: the server's time starts later than this, never earlier.
        let sent = engine.clock.now();
        if asks == Asks::ToWait {
            // Only the first request of its kind may put an entry into the queue without looking for one.
            self.asks = Asks::AfterIts(None);
            self.waits_since = sent;
            self.queued_ttl = terms.ttl;
        }
        self.ttl = terms.ttl;
        let request = AcquireRequest {
            full_key: self.full_key.clone(),
            token: self.token.clone(),
            ttl: terms.ttl,
            known_fencing: engine.known_fencing(),
            tokens,
            asks,
            entry: self.entry.number(),
            trail: self.trail.clone(),
        };
        match engine.backend.acquire(request).await {
            Ok(acquired) => {
                if self.trail.is_settled_by(acquired.connection) {
                    self.trail.settle();
                    self.armed = false;
                }
                match acquired.outcome {
                    AcquireOutcome::Granted(tokens) => {
                        self.granted(engine, sent, terms.ttl, tokens).await
                    }
                    AcquireOutcome::Busy(busy) => {
                        if asks != Asks::Once {
                            // The entry is in the queue, as it was sent.
                            self.armed = true;
                            self.waits_since = sent;
                            self.queued_ttl = terms.ttl;
                            self.asks = Asks::AfterIts(busy.place);
                        }
                        Round::Busy(busy)
                    }
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

    /// A grant has arrived by a message.
    pub(crate) async fn accept(&mut self, engine: &Engine, fencing: FencingToken) -> Round {
        let tokens = FencingBlock::new(fencing.into(), 1);
        self.granted(engine, self.waits_since, self.queued_ttl, tokens)
            .await
    }

    /// A grant is of use if at least half of its ttl is left: it is renewed once, and given up if still short.
    ///
    /// `since` is earlier than the grant. For one that came by a message, that is when the wait was last confirmed, so it
    /// may look older than it is: then the renewal confirms it.
    async fn granted(
        &mut self,
        engine: &Engine,
        since: Moment,
        ttl: Duration,
        tokens: FencingBlock,
    ) -> Round {
        // Ours until it is handed over.
        self.armed = true;
        engine.learn_fencing(tokens.last());
        let mut grant = Grant {
            full_key: self.full_key.clone(),
            token: self.token.clone(),
            entry: self.entry.number(),
            trail: self.trail.clone(),
            tokens,
            ttl,
            valid_until: validity(since, ttl),
        };
        if is_short(&grant, engine) {
            let again = engine.clock.now();
            if let Err(round) = self.confirm(engine, ttl).await {
                return round;
            }
            grant.valid_until = validity(again, ttl);
            if is_short(&grant, engine) {
                let took = engine.clock.now().since(again);
                return Round::TooSlow(LockError::invalid(format!(
                    "a round trip to the backend took {took:?}, more than half of the ttl of {ttl:?}: choose a longer ttl"
                )));
            }
        }
        Round::Granted(grant)
    }

    async fn confirm(&self, engine: &Engine, ttl: Duration) -> Result<(), Round> {
        let request = RenewRequest {
            full_key: self.full_key.clone(),
            token: self.token.clone(),
            ttl,
        };
        let renewed = engine
            .backend
            .renew(vec![request], engine.timing.command_timeout)
            .await;
        match renewed.map(|answers| answers.into_iter().next()) {
            Ok(Some(Ok(Renewed::Yes))) => Ok(()),
            // Expired while the answer was on its way: as if it had been busy, and about to be free.
            Ok(Some(Ok(Renewed::NotOurs)) | None) => Err(Round::Busy(Busy {
                expiry: Expiry::In(Duration::ZERO),
                place: None,
                comes: Comes::ByGrant,
            })),
            Ok(Some(Err(failure))) | Err(failure) => Err(Round::Failed(failure)),
        }
    }

    /// Has the entry taken out of the queue, and the key released, if it may be ours.
    pub(crate) fn take_back(self, engine: &Arc<Engine>, key: &LockKey) {
        if !self.armed {
            return;
        }
        let release = Release {
            key: key.clone(),
            full_key: self.full_key,
            token: self.token,
            entry: Some(self.entry.number()),
            trail: self.trail,
            ttl: self.ttl,
            kept_until: None,
            valid_until: engine.clock.now(),
            lost: None,
        };
        release.start(engine, None);
    }
}

fn is_short(grant: &Grant, engine: &Engine) -> bool {
    grant.valid_until.since(engine.clock.now()) < grant.ttl / 2
}
