//! The one task that renews all that a manager holds, and ends what it cannot renew.
//!
//! A server lease stands in the schedule once, at the next moment at which something is to be looked at: a renewal at a third of
//! its ttl, a retry, or its end. While a renewal is on its way it stands there at its end, so that a server which never
//! answers cannot keep it alive.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::{
    error::LeaseLost,
    lock::{
        context::validity,
        held::{lease_state::LeaseState, server_lease::ServerLease},
    },
    options::AutoRenew,
    runtime::{
        clock::{Clock, Moment},
        executor::{Executor, spawn_beside},
        jitter::jittered,
        timer_queue::TimerQueue,
    },
    store::{Failure, Renewed, Store, grants::Grants},
};

/// Renewals that come due within this time go out in one message.
const BATCHED_WITHIN: Duration = Duration::from_millis(20);

/// The most renewals in one message, so that the server stays responsive to others.
const LARGEST_BATCH: usize = 512;

#[derive(Clone)]
pub(crate) struct Renewal {
    rounds: Rounds,
    executor: Executor,
    /// Whether the task runs. It ends with the runtime it was started on, if that is the caller's; the next lease then
    /// starts another.
    running: Arc<AtomicBool>,
}

/// What the task works with. It does not hold the manager's thread, which ends with the last user of it.
#[derive(Clone)]
struct Rounds {
    held: Arc<TimerQueue<Arc<ServerLease>>>,
    store: Arc<dyn Store>,
    grants: Arc<Grants>,
    clock: Clock,
}

impl Renewal {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        grants: Arc<Grants>,
        executor: Executor,
        clock: Clock,
    ) -> Self {
        Self {
            rounds: Rounds {
                held: Arc::new(TimerQueue::new()),
                store,
                grants,
                clock,
            },
            executor,
            running: Arc::default(),
        }
    }

    /// Looks after a server lease from now on.
    pub(crate) fn watch(&self, server_lease: &Arc<ServerLease>) {
        self.rounds.plan_renewal(server_lease);
        self.keep_running();
    }

    /// Starts the task, if it does not run.
    pub(crate) fn keep_running(&self) {
        if !self.running.swap(true, Ordering::AcqRel) {
            let (rounds, running) = (
                self.rounds.clone(),
                Running(self.running.clone(), self.rounds.held.clone()),
            );
            self.executor.spawn(async move {
                let _running = running;
                rounds.go().await;
            });
        }
    }

    /// Lets a server lease run out that was renewed so far; it is still looked after.
    pub(crate) fn stop(&self, server_lease: &Arc<ServerLease>) {
        server_lease.stop_renewing();
        self.rounds.plan_renewal(server_lease);
    }

    /// Plans again for a server lease whose holder has just changed, if nothing is planned: a look that came in between found the
    /// last holder's lease ended, and planned nothing more.
    ///
    /// A look takes the plan away before it reads the holder, and this reads the plan after the holder was set. So either that
    /// look saw the new holder, or this sees that nothing is planned.
    pub(crate) fn keep_planned(&self, server_lease: &Arc<ServerLease>) {
        if !server_lease.is_planned() {
            self.watch(server_lease);
        }
    }

    /// Looks at it no later than the lease of its new holder ends.
    pub(crate) fn watch_holder(&self, lease: &LeaseState) {
        let renew_at = lease.server_lease.renew_at.load(Ordering::Relaxed);
        self.rounds
            .plan(&lease.server_lease, Moment::from_nanos(renew_at));
    }

    /// Stops looking after a server lease; a renewal that is on its way makes no difference any more.
    pub(crate) fn forget(&self, server_lease: &ServerLease) {
        self.rounds.cancel(server_lease);
    }

    /// The leases looked after now.
    pub(crate) fn leases(&self) -> Vec<Arc<LeaseState>> {
        self.rounds
            .held
            .snapshot()
            .iter()
            .filter_map(|server_lease| server_lease.holder())
            .collect()
    }
}

/// Clears the flag when the task ends, in whatever way, and has those who hold leases start another.
struct Running(Arc<AtomicBool>, Arc<TimerQueue<Arc<ServerLease>>>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
        for lease in self
            .1
            .snapshot()
            .iter()
            .filter_map(|server_lease| server_lease.holder())
        {
            lease.rouse();
        }
    }
}

/// What a look at a server lease showed.
enum Look {
    /// There is nothing to look after any more.
    NothingLeft,
    RenewNow,
    /// Nothing to do before this moment.
    Later(Moment),
}

impl Rounds {
    /// Runs for ever: as long as the manager's thread, or the caller's runtime.
    async fn go(&self) {
        loop {
            // One message for those that can wait for its answer equally long.
            let mut batches: BTreeMap<Duration, Vec<Arc<ServerLease>>> = BTreeMap::new();
            let due = tokio::select! {
                biased;
                since = self.grants.connection_change() => self.all_from_before(since),
                due = self.held.due(&self.clock, BATCHED_WITHIN) => due,
            };
            for server_lease in due {
                // Before its holder is read: see `keep_planned`.
                self.cancel(&server_lease);
                match self.look(&server_lease) {
                    Look::NothingLeft => {}
                    Look::Later(moment) => self.plan(&server_lease, moment),
                    Look::RenewNow => {
                        self.plan(&server_lease, Moment::NEVER);
                        batches
                            .entry(self.patience(&server_lease))
                            .or_default()
                            .push(server_lease);
                    }
                }
            }
            for (within, server_leases) in batches {
                for batch in server_leases.chunks(LARGEST_BATCH) {
                    // Apart from this loop, so that a slow answer delays neither other renewals nor the end of a lease.
                    let (rounds, batch) = (self.clone(), batch.to_vec());
                    spawn_beside(async move { rounds.renew(&batch, within).await });
                }
            }
        }
    }

    /// All that are renewed, whether it is time or not: the connection is gone, or a new one. Behind it there may be another
    /// server, after a fail-over, or one that was restarted: what it does not know is lost, and shall be known to be. What was
    /// taken or renewed since then is known to it.
    fn all_from_before(&self, since: Moment) -> Vec<Arc<ServerLease>> {
        let (mut all, now) = (self.held.snapshot(), self.clock.now());
        all.retain(|server_lease| server_lease.valid_until() < validity(since, server_lease.ttl));
        for server_lease in all
            .iter()
            .filter(|server_lease| server_lease.renew() == AutoRenew::On)
        {
            server_lease
                .renew_at
                .store(now.as_nanos(), Ordering::Relaxed);
        }
        all
    }

    fn look(&self, server_lease: &ServerLease) -> Look {
        let Some(lease) = server_lease.holder() else {
            return Look::NothingLeft;
        };
        if lease.ended().is_some() {
            return Look::NothingLeft;
        }
        let soon = self.clock.now().after(BATCHED_WITHIN);
        if !lease.is_claimed() {
            // A task that is not polled keeps the lock from others: for half of the ttl, and not renewed.
            let patience_ends = server_lease.half_time();
            if soon < patience_ends {
                return Look::Later(patience_ends);
            }
            lease.pass_on();
            if server_lease.is_planned() {
                // The next task has it, and that is what is planned.
                return Look::NothingLeft;
            }
            // Its task is taking it in this moment, or leaving it: that is settled by the next look.
            return Look::Later(soon);
        }
        let renew_at = Moment::from_nanos(server_lease.renew_at.load(Ordering::Relaxed));
        if soon < renew_at {
            return Look::Later(renew_at);
        }
        Look::RenewNow
    }

    /// How long one attempt may take: a tenth of the ttl, but time enough for a few round trips.
    fn patience(&self, server_lease: &ServerLease) -> Duration {
        let enough = (self.store.round_trip() * 4).max(Duration::from_millis(20));
        (server_lease.ttl / 10)
            .max(enough)
            .min(Duration::from_millis(500))
    }

    async fn renew(&self, server_leases: &[Arc<ServerLease>], within: Duration) {
        // Before the request is handed over: the server's time starts later than this, never earlier.
        let sent = self.clock.now();
        let batch = server_leases
            .iter()
            .map(|server_lease| server_lease.renew_request(server_lease.ttl))
            .collect();
        match self.store.renew(batch, within).await {
            Ok(answers) => {
                for (server_lease, answer) in server_leases.iter().zip(answers) {
                    self.apply(server_lease, sent, answer, within);
                }
            }
            Err(failure) => {
                for server_lease in server_leases {
                    self.apply(server_lease, sent, Err(failure.clone()), within);
                }
            }
        }
    }

    fn apply(
        &self,
        server_lease: &Arc<ServerLease>,
        sent: Moment,
        answer: Result<Renewed, Failure>,
        within: Duration,
    ) {
        match answer {
            // An answer that came after the lease ran out changes nothing: the end is looked at first.
            Ok(Renewed::Extended) => {
                server_lease.renewed_until(validity(sent, server_lease.ttl));
                self.plan_renewal(server_lease);
            }
            Ok(Renewed::NotOurs) => server_lease.lose(LeaseLost::TakenAway),
            // Retried until the lease ends, at the pace of the attempts themselves.
            Err(failure) => {
                tracing::debug!(key = %server_lease.key, ?failure, "a renewal failed");
                self.renew_at(server_lease, self.clock.now().after(jittered(within / 2)));
            }
        }
    }

    /// Plans the next renewal, or the end where there is to be none.
    fn plan_renewal(&self, server_lease: &Arc<ServerLease>) {
        if server_lease.renew() == AutoRenew::Off {
            server_lease
                .renew_at
                .store(Moment::NEVER.as_nanos(), Ordering::Relaxed);
            // Somebody has to see whether it is claimed.
            let half = server_lease.half_time();
            return self.plan(server_lease, half);
        }
        let now = self.clock.now();
        let third = server_lease.valid_until().since(now).min(server_lease.ttl) / 3;
        self.renew_at(server_lease, now.after(third * 4 / 5 + jittered(third / 5)));
    }

    fn renew_at(&self, server_lease: &Arc<ServerLease>, at: Moment) {
        server_lease
            .renew_at
            .store(at.as_nanos(), Ordering::Relaxed);
        self.plan(server_lease, at);
    }

    /// Looks at it then, or when the lease of its holder ends, if that is sooner.
    fn plan(&self, server_lease: &Arc<ServerLease>, at: Moment) {
        let Some(lease) = server_lease.holder() else {
            return;
        };
        let timer_id = self
            .held
            .insert(at.min(lease.deadline()), server_lease.clone());
        if let Some(earlier) = server_lease.swap_timer_id(Some(timer_id)) {
            self.held.remove(earlier);
        }
        if server_lease.holder().is_none() {
            // Let go while this was planned: `forget` may have come before the new ticket was there.
            self.cancel(server_lease);
        }
    }

    /// Plans nothing more for a server lease.
    fn cancel(&self, server_lease: &ServerLease) {
        if let Some(timer_id) = server_lease.swap_timer_id(None) {
            self.held.remove(timer_id);
        }
    }
}
