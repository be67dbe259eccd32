//! Giving a key back, whatever happens on the way.
//!
//! One task for each release, where no user's future can be dropped under it. It repeats until the server has answered
//! on the very connection that carried every acquire with this token, or until the lease must have ended by itself.

use std::{sync::Arc, time::Duration};

use tokio::sync::oneshot;

use crate::{
    backend::{Failure, ReleaseOutcome, ReleaseRequest},
    clock::Moment,
    engine::{Engine, Open, jittered},
    error::LockError,
    key::LockKey,
    lease::{LeaseLost, LeaseState},
    token::OwnerToken,
    trail::Trail,
};

/// The first pause between two tries; it doubles up to the longest one.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What is to be given back.
pub(crate) struct Release {
    pub(crate) key: LockKey,
    pub(crate) full_key: Arc<str>,
    pub(crate) token: OwnerToken,
    pub(crate) trail: Arc<Trail>,
    pub(crate) ttl: Duration,
    /// Until when `min_hold` keeps the key.
    pub(crate) kept_until: Option<Moment>,
    /// Until when the lease is certain to be ours; the start of the clock for a key that was never granted.
    pub(crate) valid_until: Moment,
    /// Whether the lease was known to be lost before.
    pub(crate) lost: Option<LeaseLost>,
}

/// Whoever waits for the word on a release; nobody, if the guard was dropped.
pub(crate) type Reply = Option<oneshot::Sender<Result<(), LockError>>>;

impl Release {
    pub(crate) fn of(lease: &LeaseState, lost: Option<LeaseLost>) -> Self {
        Self {
            key: lease.key.clone(),
            full_key: lease.full_key.clone(),
            token: lease.token.clone(),
            trail: lease.trail.clone(),
            ttl: lease.terms.ttl,
            kept_until: lease.kept_until(),
            valid_until: lease.valid_until(),
            lost,
        }
    }

    /// Starts the task. `open` keeps a shutdown waiting until it is through.
    pub(crate) fn start(self, engine: &Arc<Engine>, open: Open, reply: Reply) {
        let work = engine.clone();
        engine.spawner.spawn(async move {
            let _open = open;
            self.run(&work, reply).await;
        });
    }

    async fn run(self, engine: &Engine, mut reply: Reply) {
        // A request may sit in a socket of a server that stands still, and a last renewal as well. This bounds the loop:
        // a dozen tries for each ten seconds of ttl.
        let started = engine.clock.now();
        let give_up = started.after(self.ttl + engine.timing.command_timeout * 5);
        let mut pause = FIRST_PAUSE;
        let mut tries = 0_u32;
        loop {
            let answer = engine.backend.release(self.request(engine)).await;
            tries += 1;
            match answer {
                Ok(released) => {
                    tell(&mut reply, self.verdict(released.outcome, tries, engine));
                    if self.trail.is_settled_by(released.connection) {
                        return;
                    }
                }
                Err(failure) => {
                    tracing::debug!(key = %self.key, ?failure, tries, "a release got no answer");
                    // A connection that was closed while idle fails at once, and the next try repairs it. A time-out
                    // was wait enough for whoever waits.
                    if tries > 1
                        || engine.clock.now().since(started) >= engine.timing.command_timeout
                    {
                        self.tell_unavailable(&mut reply, failure);
                    }
                }
            }
            if engine.clock.now() >= give_up {
                tracing::warn!(key = %self.key, "released late: no certain answer before the lease ended by itself");
                return;
            }
            engine
                .clock
                .sleep_until(engine.clock.now().after(jittered(pause)))
                .await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn request(&self, engine: &Engine) -> ReleaseRequest {
        let now = engine.clock.now();
        ReleaseRequest {
            full_key: self.full_key.clone(),
            token: self.token.clone(),
            keep: self
                .kept_until
                .map(|until| until.since(now))
                .filter(|keep| !keep.is_zero()),
        }
    }

    /// What the server's word means for whoever waits.
    ///
    /// A key that is not ours any more was deleted by an earlier try whose answer was lost, if there was one and the
    /// lease could not have run out; else it was taken away.
    fn verdict(
        &self,
        outcome: ReleaseOutcome,
        tries: u32,
        engine: &Engine,
    ) -> Result<(), LockError> {
        let lost = |reason| {
            Err(LockError::Lost {
                key: self.key.clone(),
                reason,
            })
        };
        match (self.lost, outcome) {
            (Some(reason), _) => lost(reason),
            (None, ReleaseOutcome::Done) => Ok(()),
            (None, ReleaseOutcome::NotOurs) if engine.clock.now() >= self.valid_until => {
                lost(LeaseLost::Expired)
            }
            (None, ReleaseOutcome::NotOurs) if tries > 1 => Ok(()),
            (None, ReleaseOutcome::NotOurs) => lost(LeaseLost::TakenAway),
        }
    }

    fn tell_unavailable(&self, reply: &mut Reply, failure: Failure) {
        tell(reply, Err(LockError::from(failure).about(&self.key)));
    }
}

fn tell(reply: &mut Reply, word: Result<(), LockError>) {
    if let Some(reply) = reply.take() {
        // The future that waited may have been dropped; the release goes on all the same.
        drop(reply.send(word));
    }
}
