//! Locks on several independent primaries, of which a majority has to agree (Redlock, by Salvatore Sanfilippo), with fencing
//! tokens that grow.
//!
//! Every question goes to all servers at the same time, and is answered as soon as a majority has: one that is down or hangs
//! costs nobody time. What is still under way then goes on, and is noted on the trail of the request, so that a release knows
//! what it has to take back. There is no queue: a waiter asks every now and then.
//!
//! - `ballot`: which fencing token to propose, and what the votes add up to;
//! - `election`: a ballot with real servers;
//! - `member`: one server, as this process knows it; `quarantine`: who may vote;
//! - `quorum`: counting;
//! - `courtesy`: letting other processes in;
//! - `acquiring`, `keeping`, `releasing`, `operating`: what the port asks for.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::sync::{mpsc, oneshot};

use crate::{
    error::LockError,
    inspect::{Health, Sighting},
    runtime::{
        clock::{Clock, wall_clock},
        executor::spawn_beside,
    },
    store::{
        Acquire, Acquired, Failure, Prefetch, Prefetched, QueueMode, Release, Released, Renew,
        Renewed, Store, StoreFuture, Then,
        owner_token::random_name,
        redis::{Scope, Settings},
        redlock::{
            back_off::BackOff,
            quorum::{VoteCount, majority, reached_by_majority},
            server::RedlockServer,
            voting_round::no_majority,
        },
        timing::Timing,
    },
};

mod acquire;
mod back_off;
mod ballot;
pub(crate) mod in_flight;
mod inspect;
mod quorum;
mod release;
mod renew;
pub(crate) mod restart_quarantine;
mod server;
mod voting_round;

const CLOCK: Clock = Clock::Boot;

/// A waiter that asks again within so many of its pauses is remembered by the servers in between.
const MARK_PAUSES: u32 = 4;

/// A number that is further ahead of the servers' clocks than this is not gone on from.
const FAR_AHEAD_MICROS: u64 = 500_000;

/// A vote is counted by a task.
const NOT_AT_ONCE: &str = "several servers are not asked at once";

#[derive(Clone)]
pub(crate) struct RedlockStore(Arc<RedlockServers>);

struct RedlockServers {
    servers: Vec<Arc<RedlockServer>>,
    timing: Timing,
    scope: Scope,
    /// Names this manager to the servers, and through them to other waiters.
    name: Arc<str>,
    /// The largest number that this process proposed.
    last_number: Mutex<u64>,
    back_off: BackOff,
}

impl RedlockStore {
    /// Connects with the first request. `quarantine` is for how long a server must have been up before it votes.
    pub(crate) fn new(
        urls: &[String],
        settings: &Settings,
        quarantine: Duration,
    ) -> Result<Self, LockError> {
        check_list(urls)?;
        let run_ids = Arc::default();
        let servers = urls
            .iter()
            .enumerate()
            .map(|(place, url)| {
                let member =
                    RedlockServer::new(place, url, settings, quarantine, Arc::clone(&run_ids));
                member.map(Arc::new).map_err(|error| in_place(place, error))
            })
            .collect::<Result<_, _>>()?;
        Ok(Self(Arc::new(RedlockServers {
            servers,
            timing: settings.timing,
            scope: settings.scope.clone(),
            name: random_name().into(),
            last_number: Mutex::new(0),
            back_off: BackOff::default(),
        })))
    }

    /// Makes the first connections, and makes sure of whom they lead to. A majority must answer, and no server may be listed
    /// twice. Servers that may not vote yet do no harm here.
    pub(crate) async fn greet(&self) -> Result<(), Failure> {
        let mut answers = self
            .0
            .ask_all(|_, member| async move { member.connect().await });
        let (mut failures, mut greeted) = (Vec::new(), 0);
        while let Some((_, answer)) = answers.recv().await {
            match answer {
                Ok(()) => greeted += 1,
                Err(failure @ Failure::Invalid(_)) => return Err(failure),
                Err(failure) => failures.push(failure),
            }
        }
        if greeted >= self.0.majority() {
            if let Some(warning) = self.0.scope.warning() {
                tracing::warn!("{warning}");
            }
            return Ok(());
        }
        Err(Failure::no_answer(no_majority(
            self.0.servers.len(),
            &failures,
        )))
    }
}

/// Which url of the list an error is about.
fn in_place(place: usize, error: LockError) -> LockError {
    match error {
        LockError::Invalid { key: None, reason } => {
            LockError::invalid(format!("url {} of the list: {reason}", place + 1))
        }
        other => other,
    }
}

/// The same server twice is found out when it answers; the same url here.
fn check_list(urls: &[String]) -> Result<(), LockError> {
    let count = urls.len();
    if count < 3 {
        return Err(LockError::invalid(format!(
            "{count} servers are no majority of anything: list three or five independent ones, or connect to a single one"
        )));
    }
    if count.is_multiple_of(2) {
        return Err(LockError::invalid(format!(
            "{count} servers survive the loss of no more than {} would: list an odd number",
            count - 1
        )));
    }
    let mut sorted: Vec<&String> = urls.iter().collect();
    sorted.sort_unstable();
    if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(LockError::invalid(
            "one server is listed twice: name each once, or its vote counts twice",
        ));
    }
    Ok(())
}

impl RedlockServers {
    fn majority(&self) -> usize {
        majority(self.servers.len())
    }

    fn tally(&self) -> VoteCount {
        VoteCount::of(self.servers.len())
    }

    /// Asks every server, each apart from the others. The questions go on when nobody waits for the answers any more.
    fn ask_all<T, F>(
        &self,
        question: impl Fn(usize, Arc<RedlockServer>) -> F,
    ) -> mpsc::UnboundedReceiver<(usize, T)>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let (tell, answers) = mpsc::unbounded_channel();
        for (server, member) in self.servers.iter().enumerate() {
            let (tell, answer) = (tell.clone(), question(server, member.clone()));
            spawn_beside(async move {
                // Nobody listens any more once it is decided.
                drop(tell.send((server, answer.await)));
            });
        }
        answers
    }

    /// The first number to propose: the time at which the servers will hear of it, but above all that this process knows or
    /// has proposed, for the last of `count` tokens.
    fn next_number(&self, known: u64, count: u32) -> u64 {
        let clocks = self.servers.iter().filter_map(|member| member.clock());
        let time = reached_by_majority(self.servers.len(), clocks.collect())
            .unwrap_or_else(own_wall_clock)
            .saturating_add(micros(self.round_trip()));
        let count = u64::from(count);
        let mut last = self
            .last_number
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut number = time.max(known + count);
        // A proposal that went astray, by a clock that was set back, must not keep the next ones astray.
        if *last < number + FAR_AHEAD_MICROS {
            number = number.max(*last + count);
        }
        *last = number;
        number
    }

    /// Twice what a message takes, and what two clocks may be apart within a data centre.
    fn slack(&self) -> u64 {
        micros(self.round_trip() * 2) + 500
    }

    fn round_trip(&self) -> Duration {
        let known = self.servers.iter().map(|member| member.node.round_trip());
        let known = known.filter(|time| !time.is_zero()).collect();
        reached_by_majority(self.servers.len(), known).unwrap_or_default()
    }

    fn patience(&self, ttl: Duration) -> Duration {
        voting_round::patience(ttl, self.round_trip(), self.timing.command_timeout)
    }

    fn mark(&self, queue_mode: QueueMode) -> Duration {
        match queue_mode {
            QueueMode::DoNotQueue => Duration::ZERO,
            QueueMode::JoinQueue | QueueMode::CheckPosition(_) => {
                self.timing.polling_pause * MARK_PAUSES
            }
        }
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

fn own_wall_clock() -> u64 {
    micros(wall_clock())
}

impl fmt::Debug for RedlockStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.0.servers.iter().map(|member| &member.node))
            .finish()
    }
}

impl Store for RedlockStore {
    fn acquire(&self, request: Acquire) -> StoreFuture<Acquired> {
        let servers = self.0.clone();
        Box::pin(async move { acquire::acquire(&servers, request).await })
    }

    fn acquire_at_once(&self, _: &Acquire, then: Then<Acquired>) {
        then(Err(Failure::not_now(NOT_AT_ONCE)));
    }

    fn renew(
        &self,
        batch: Vec<Renew>,
        within: Duration,
    ) -> StoreFuture<Vec<Result<Renewed, Failure>>> {
        let servers = self.0.clone();
        Box::pin(async move {
            let (tell, told) = oneshot::channel();
            // Apart from whoever asked: what comes after the majority's word is of use, too.
            spawn_beside(renew::renew(servers, batch, within, tell));
            told.await
                .map_err(|_| Failure::no_answer("the renewal ended without a word"))
        })
    }

    fn prefetch(&self, request: Prefetch) -> StoreFuture<Prefetched> {
        let servers = self.0.clone();
        Box::pin(async move { acquire::prefetch(&servers, request).await })
    }

    fn release(&self, request: Release) -> StoreFuture<Released> {
        let servers = self.0.clone();
        Box::pin(async move { release::release(&servers, request).await })
    }

    fn release_at_once(&self, _: &Release, then: Then<Released>) {
        then(Err(Failure::not_now(NOT_AT_ONCE)));
    }

    fn inspect(&self, full_key: Arc<str>) -> StoreFuture<Option<Sighting>> {
        let servers = self.0.clone();
        Box::pin(async move { inspect::inspect(&servers, full_key).await })
    }

    fn force_release(&self, full_key: Arc<str>, known_fencing: u64) -> StoreFuture<()> {
        let servers = self.0.clone();
        Box::pin(async move { inspect::force_release(&servers, full_key, known_fencing).await })
    }

    fn check(&self) -> StoreFuture<Health> {
        let servers = self.0.clone();
        Box::pin(async move { inspect::check(&servers).await })
    }

    fn round_trip(&self) -> Duration {
        self.0.round_trip()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(count: usize) -> RedlockStore {
        let urls: Vec<String> = (0..count).map(|n| format!("redis://h{n}")).collect();
        RedlockStore::new(&urls, &Settings::default(), Duration::ZERO).expect("a list")
    }

    #[test]
    fn each_proposal_is_above_what_is_known_and_above_the_last_one() {
        let servers = store(3).0;
        let first = servers.next_number(0, 1);
        assert!(servers.next_number(0, 1) > first);
        let second = servers.next_number(first + 1000, 1);
        assert!(second > first + 1000);
        // All of a block.
        assert!(servers.next_number(0, 64) - 64 >= second);
        // By a clock that was set back since.
        let astray = first + 10 * FAR_AHEAD_MICROS;
        *servers.last_number.lock().expect("no panic") = astray;
        assert!(servers.next_number(0, 1) < astray);
    }
}
