//! Giving a key back, whatever happens on the way.
//!
//! It is the manager's own work, where no user's future can be dropped under it. The first try leaves at once; only if it
//! does not settle everything does it become a task. That repeats until the server has answered on the very connection that
//! carried every acquire with this token, or until the lease must have ended by itself.

use std::{sync::Arc, time::Duration};

use tokio::sync::oneshot;

use crate::{
    error::{LeaseLost, LockError},
    key::LockKey,
    lock::{context::Context, held::lease_state::LeaseState},
    runtime::{catch_panic::catch_panic, clock::Moment, jitter::jittered, tally::Open},
    store::{
        Failure, Release, ReleaseOutcome, Released, grants::EntryNumber, in_flight::InFlight,
        owner_token::OwnerToken,
    },
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
    fn count(&mut self, failure: &Failure, in_flight: &InFlight) {
        self.all += 1;
        self.may_have_done_it |= !failure.is_definite() && !in_flight.is_empty();
        self.refused += u32::from(!failure.is_transient());
    }
}

/// What is to be given back.
pub(crate) struct PendingRelease {
    pub(crate) key: LockKey,
    pub(crate) full_key: Arc<str>,
    pub(crate) token: OwnerToken,
    /// The entry that may stand in the queue for this token; `None` after a normal end, since a granted entry stands in none.
    pub(crate) entry: Option<EntryNumber>,
    pub(crate) in_flight: Arc<InFlight>,
    pub(crate) ttl: Duration,
    /// Until when `min_hold` keeps the key.
    pub(crate) kept_until: Option<Moment>,
    /// Until when the lease is certain to be ours; the start of the clock for a key that was never granted.
    pub(crate) valid_until: Moment,
    /// Whether the lease was known to be lost before.
    pub(crate) lost: Option<LeaseLost>,
}

/// Whoever waits for the word on a release; nobody, if the guard was dropped.
pub(crate) type ReplyTo = Option<oneshot::Sender<Result<(), LockError>>>;

impl PendingRelease {
    pub(crate) fn of(lease: &LeaseState, lost: Option<LeaseLost>) -> Self {
        let server_lease = &lease.server_lease;
        Self {
            key: server_lease.key.clone(),
            full_key: server_lease.full_key.clone(),
            token: server_lease.token.clone(),
            // A copy of the entry that left on another connection may still be put into the queue.
            entry: (!server_lease.in_flight.is_on_one_connection()).then_some(server_lease.entry),
            in_flight: server_lease.in_flight.clone(),
            ttl: server_lease.ttl,
            kept_until: lease.kept_until(),
            valid_until: server_lease.valid_until(),
            lost,
        }
    }

    /// Tries for the first time, at once; the caller has it leave, by the backend's `flush`.
    pub(crate) fn start(self, context: &Arc<Context>, reply: ReplyTo) {
        let work = ReleaseTask {
            started: context.clock.now(),
            context: context.clone(),
            in_flight: Arc::default(),
            so_far: Tries::default(),
            reply,
            release: self,
            _open: context.in_progress.open(),
        };
        let request = work.release.request(context, &work.in_flight);
        let then = move |answer| work.begin_with(answer);
        context.store.release_at_once(&request, Box::new(then));
    }

    fn request(&self, context: &Context, in_flight: &Arc<InFlight>) -> Release {
        let now = context.clock.now();
        let keep = self.kept_until.map(|until| until.since(now));
        Release {
            full_key: self.full_key.clone(),
            token: self.token.clone(),
            keep: keep.filter(|keep| !keep.is_zero()),
            known_fencing: context.known_fencing(),
            entry: self.entry,
            in_flight: in_flight.clone(),
            acquire_in_flight: self.in_flight.clone(),
        }
    }

    fn lost_error(&self, reason: LeaseLost) -> LockError {
        LockError::Lost {
            key: self.key.clone(),
            reason,
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
        context: &Context,
    ) -> Result<(), LockError> {
        let lost = |reason| Err(self.lost_error(reason));
        match (self.lost, outcome) {
            (Some(reason), _) => lost(reason),
            (None, ReleaseOutcome::Released) => Ok(()),
            (None, ReleaseOutcome::NotOurs) if context.clock.now() >= self.valid_until => {
                lost(LeaseLost::Expired)
            }
            (None, ReleaseOutcome::NotOurs) if so_far.may_have_done_it => Ok(()),
            (None, ReleaseOutcome::NotOurs) => lost(LeaseLost::TakenAway),
        }
    }
}

/// A release under way.
struct ReleaseTask {
    release: PendingRelease,
    context: Arc<Context>,
    started: Moment,
    /// The connections that the tries left on.
    in_flight: Arc<InFlight>,
    so_far: Tries,
    reply: ReplyTo,
    /// A shutdown waits for it.
    _open: Open,
}

impl ReleaseTask {
    /// Deals with the first answer.
    fn begin_with(mut self, answer: Result<Released, Failure>) {
        let was_sent =
            !matches!(&answer, Err(failure) if failure.is_transient() && failure.is_definite());
        if was_sent && self.is_settled_by(answer) {
            return;
        }
        let context = self.context.clone();
        context.executor.spawn(self.run());
    }

    async fn run(mut self) {
        // A request may sit in a socket of a server that stands still, and a last renewal as well. This bounds the loop:
        // a dozen tries for each ten seconds of ttl.
        let patience = self.context.timing.command_timeout.saturating_mul(5);
        let give_up = self.started.after(self.release.ttl + patience);
        let mut pause = FIRST_PAUSE;
        loop {
            let request = self.release.request(&self.context, &self.in_flight);
            let answer = self.context.store.release(request).await;
            if self.is_settled_by(answer) {
                return;
            }
            let clock = &self.context.clock;
            if clock.now() >= give_up {
                tracing::warn!(key = %self.release.key, "released late: no certain answer before the lease ended by itself");
                return;
            }
            clock.sleep_until(clock.now().after(jittered(pause))).await;
            pause = pause.saturating_mul(2).min(LONGEST_PAUSE);
        }
    }

    /// Tells whoever waits what is known; returns whether there is nothing more to do.
    fn is_settled_by(&mut self, answer: Result<Released, Failure>) -> bool {
        let failure = match answer {
            Ok(released) => {
                let result = self
                    .release
                    .verdict(released.outcome, &self.so_far, &self.context);
                tell(&mut self.reply, result);
                return self.release.in_flight.is_settled_by(released.connection);
            }
            Err(failure) => failure,
        };
        tracing::debug!(key = %self.release.key, ?failure, tries = self.so_far.all, "a release got no answer");
        self.so_far.count(&failure, &self.in_flight);
        // A connection that was closed while idle fails at once, and the next try repairs it. What passes by itself (a slot of a
        // cluster that is being moved) may be over with the next one, too. A time-out was wait enough for whoever waits.
        let waited = self.context.clock.now().since(self.started);
        let may_pass = failure.is_definite() && failure.is_transient();
        let was_enough = self.so_far.all > 1 && !may_pass;
        if was_enough || waited >= self.context.timing.command_timeout {
            // That the lease was lost was known before, and no answer can change it.
            let error = match self.release.lost {
                Some(reason) => self.release.lost_error(reason),
                None => LockError::from(failure).about(&self.release.key),
            };
            tell(&mut self.reply, Err(error));
        }
        self.so_far.refused >= MOST_REFUSALS
    }
}

fn tell(reply: &mut ReplyTo, result: Result<(), LockError>) {
    if let Some(reply) = reply.take() {
        // The future that waited may have been dropped; the release goes on all the same.
        catch_panic(|| drop(reply.send(result)));
    }
}
