//! The one task that renews every lease of a manager, and ends those that it cannot renew.
//!
//! A lease stands in the schedule once, at the next moment at which something is to be done about it: a renewal at a
//! third of its ttl, a retry, or its end. While a renewal is on its way it stands there at its end, so that a server
//! which never answers cannot keep it alive.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::{
    backend::{Backend, Failure, Renewed},
    clock::{Clock, Moment},
    engine::{jittered, validity},
    lease::{LeaseLost, LeaseState},
    schedule::Schedule,
    spawner::Spawner,
};

/// Renewals that come due within this time go out in one message.
const BATCHED_WITHIN: Duration = Duration::from_millis(20);

/// The most renewals in one message, so that the server stays responsive to others.
const LARGEST_BATCH: usize = 512;

#[derive(Clone)]
pub(crate) struct Renewal {
    rounds: Rounds,
    spawner: Spawner,
    /// Whether the task runs. It ends with the runtime it was started on, if that is the caller's; the next lease then
    /// starts another.
    running: Arc<AtomicBool>,
}

/// What the task works with. It does not hold the manager's thread, which ends with the last user of it.
#[derive(Clone)]
struct Rounds {
    held: Arc<Schedule<Due>>,
    backend: Arc<dyn Backend>,
    clock: Clock,
}

#[derive(Clone)]
struct Due {
    lease: Arc<LeaseState>,
    what: What,
}

#[derive(Clone, Copy)]
enum What {
    Renew,
    End,
}

impl Renewal {
    pub(crate) fn new(backend: Arc<dyn Backend>, spawner: Spawner, clock: Clock) -> Self {
        Self {
            rounds: Rounds {
                held: Arc::new(Schedule::new()),
                backend,
                clock,
            },
            spawner,
            running: Arc::default(),
        }
    }

    /// Looks after a lease from now on.
    pub(crate) fn watch(&self, lease: &Arc<LeaseState>) {
        self.rounds.plan_renewal(lease);
        if !self.running.swap(true, Ordering::AcqRel) {
            let (rounds, running) = (self.rounds.clone(), Running(self.running.clone()));
            self.spawner.spawn(async move {
                let _running = running;
                rounds.go().await;
            });
        }
    }

    /// Stops looking after a lease; a renewal that is on its way makes no difference any more.
    pub(crate) fn forget(&self, lease: &LeaseState) {
        if let Some(ticket) = lease.swap_ticket(None) {
            self.rounds.held.remove(ticket);
        }
    }

    /// The leases looked after now.
    pub(crate) fn leases(&self) -> Vec<Arc<LeaseState>> {
        self.rounds
            .held
            .snapshot()
            .into_iter()
            .map(|due| due.lease)
            .collect()
    }
}

/// Clears the flag when the task ends, in whatever way.
struct Running(Arc<AtomicBool>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Rounds {
    /// Runs for ever: as long as the manager's thread, or the caller's runtime.
    async fn go(&self) {
        loop {
            // One message for those that can wait for its answer equally long.
            let mut batches: BTreeMap<Duration, Vec<Arc<LeaseState>>> = BTreeMap::new();
            for Due { lease, what } in self.held.due(&self.clock, BATCHED_WITHIN).await {
                if lease.ended().is_some() {
                    continue;
                }
                self.plan_end(&lease);
                if let What::Renew = what {
                    batches
                        .entry(self.patience(&lease))
                        .or_default()
                        .push(lease);
                }
            }
            for (within, leases) in batches {
                for batch in leases.chunks(LARGEST_BATCH) {
                    // Apart from this loop, so that a slow answer delays neither other renewals nor the end of a lease.
                    let (rounds, batch) = (self.clone(), batch.to_vec());
                    drop(tokio::spawn(
                        async move { rounds.renew(&batch, within).await },
                    ));
                }
            }
        }
    }

    /// How long one attempt may take: a tenth of the ttl, but time enough for a few round trips.
    fn patience(&self, lease: &LeaseState) -> Duration {
        let enough = (self.backend.round_trip() * 4).max(Duration::from_millis(20));
        (lease.terms.ttl / 10)
            .max(enough)
            .min(Duration::from_millis(500))
    }

    async fn renew(&self, leases: &[Arc<LeaseState>], within: Duration) {
        // Before the request is handed over: the server's time starts later than this, never earlier.
        let sent = self.clock.now();
        let batch = leases
            .iter()
            .map(|lease| lease.renew_request(lease.terms.ttl))
            .collect();
        match self.backend.renew(batch, within).await {
            Ok(answers) => {
                for (lease, answer) in leases.iter().zip(answers) {
                    self.apply(lease, sent, answer, within);
                }
            }
            Err(failure) => {
                for lease in leases {
                    self.apply(lease, sent, Err(failure.clone()), within);
                }
            }
        }
    }

    fn apply(
        &self,
        lease: &Arc<LeaseState>,
        sent: Moment,
        answer: Result<Renewed, Failure>,
        within: Duration,
    ) {
        match answer {
            // An answer that came after the lease ran out changes nothing: the end is looked at first.
            Ok(Renewed::Yes) => {
                lease.extend(validity(sent, lease.terms.ttl));
                self.plan_renewal(lease);
            }
            Ok(Renewed::NotOurs) => {
                lease.end(LeaseLost::TakenAway);
            }
            // Retried until the lease ends, at the pace of the attempts themselves.
            Err(failure) => {
                tracing::debug!(key = %lease.key, ?failure, "a renewal failed");
                let pause = jittered(within / 2);
                self.plan(lease, self.clock.now().after(pause), What::Renew);
            }
        }
    }

    /// Plans the next renewal, or the end where there is to be none.
    fn plan_renewal(&self, lease: &Arc<LeaseState>) {
        if !lease.is_renewed() {
            return self.plan_end(lease);
        }
        let now = self.clock.now();
        let third = lease.valid_until().since(now).min(lease.terms.ttl) / 3;
        let at = now.after(third * 4 / 5 + jittered(third / 5));
        self.plan(lease, at, What::Renew);
    }

    fn plan_end(&self, lease: &Arc<LeaseState>) {
        self.plan(lease, lease.deadline(), What::End);
    }

    fn plan(&self, lease: &Arc<LeaseState>, at: Moment, what: What) {
        let end = lease.deadline();
        let (at, what) = if at < end {
            (at, what)
        } else {
            (end, What::End)
        };
        let due = Due {
            lease: lease.clone(),
            what,
        };
        let ticket = self.held.insert(at, due);
        if let Some(earlier) = lease.swap_ticket(Some(ticket)) {
            self.held.remove(earlier);
        }
        if lease.ended().is_some()
            && let Some(ticket) = lease.swap_ticket(None)
        {
            // Released while this was planned: `forget` may have come before the new ticket was there.
            self.held.remove(ticket);
        }
    }
}
