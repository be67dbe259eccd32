//! Giving a key back, whatever happens on the way.
//!
//! One task for each release, where no user's future can be dropped under it. It repeats until the server has answered
//! on the very connection that carried every acquire with this token, or until the lease must have ended by itself.

use std::{sync::Arc, time::Duration};

use tokio::sync::oneshot;

use crate::{
    backend::{Failure, ReleaseOutcome, ReleaseRequest},
    clock::Moment,
    engine::{Engine, jittered},
    error::LockError,
    grants::EntryNumber,
    key::LockKey,
    lease::{LeaseLost, LeaseState},
    token::OwnerToken,
    trail::Trail,
};

/// The first pause between two tries; it doubles up to the longest one.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// After so many answers that forbid it, there is no use in asking.
const MOST_REFUSALS: u32 = 3;

/// What came of the tries so far.
#[derive(Default)]
struct Tries {
    all: u32,
    refused: u32,
    /// Whether one of them left and has no answer.
    may_have_done_it: bool,
}

impl Tries {
    fn count(&mut self, failure: &Failure, departures: &Trail) {
        self.all += 1;
        self.may_have_done_it |= !failure.is_definite() && !departures.is_empty();
        self.refused += u32::from(!failure.is_transient());
    }
}

/// What is to be given back.
pub(crate) struct Release {
    pub(crate) key: LockKey,
    pub(crate) full_key: Arc<str>,
    pub(crate) token: OwnerToken,
    /// The entry that may stand in the queue for this token; `None` after a normal end, since a granted entry stands in none.
    pub(crate) entry: Option<EntryNumber>,
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
        let tenure = &lease.tenure;
        Self {
            key: tenure.key.clone(),
            full_key: tenure.full_key.clone(),
            token: tenure.token.clone(),
            // A copy of the entry that left on another connection may still be put into the queue.
            entry: (!tenure.trail.is_single()).then_some(tenure.entry),
            trail: tenure.trail.clone(),
            ttl: tenure.ttl,
            kept_until: lease.kept_until(),
            valid_until: tenure.valid_until(),
            lost,
        }
    }

    /// Starts the task.
    pub(crate) fn start(self, engine: &Arc<Engine>, reply: Reply) {
        let open = engine.on_its_way.open();
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
        let give_up = started.after(self.ttl + engine.timing.command_timeout.saturating_mul(5));
        let mut pause = FIRST_PAUSE;
        let departures = Arc::<Trail>::default();
        let mut so_far = Tries::default();
        loop {
            let answer = engine
                .backend
                .release(self.request(engine, &departures))
                .await;
            match answer {
                Ok(released) => {
                    tell(&mut reply, self.verdict(released.outcome, &so_far, engine));
                    if self.trail.is_settled_by(released.connection) {
                        return;
                    }
                }
                Err(failure) => {
                    tracing::debug!(key = %self.key, ?failure, tries = so_far.all, "a release got no answer");
                    so_far.count(&failure, &departures);
                    // A connection that was closed while idle fails at once, and the next try repairs it. A time-out
                    // was wait enough for whoever waits.
                    let waited = engine.clock.now().since(started);
                    if so_far.all > 1 || waited >= engine.timing.command_timeout {
                        self.tell_unavailable(&mut reply, failure);
                    }
                    if so_far.refused >= MOST_REFUSALS {
                        return;
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
            pause = pause.saturating_mul(2).min(LONGEST_PAUSE);
        }
    }

    fn request(&self, engine: &Engine, departures: &Arc<Trail>) -> ReleaseRequest {
        let now = engine.clock.now();
        let keep = self.kept_until.map(|until| until.since(now));
        ReleaseRequest {
            full_key: self.full_key.clone(),
            token: self.token.clone(),
            keep: keep.filter(|keep| !keep.is_zero()),
            known_fencing: engine.known_fencing(),
            entry: self.entry,
            trail: departures.clone(),
        }
    }

    /// What the server's word means for whoever waits.
    ///
    /// A key that is not ours any more was deleted by an earlier try whose answer was lost, if there was one and the
    /// lease could not have run out; else it was taken away.
    fn verdict(
        &self,
        outcome: ReleaseOutcome,
        so_far: &Tries,
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
            (None, ReleaseOutcome::NotOurs) if so_far.may_have_done_it => Ok(()),
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
