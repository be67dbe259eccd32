//! Locks on several independent primaries, of which a majority has to agree (Redlock, by Salvatore Sanfilippo), with fencing
//! tokens that grow.
//!
//! Every request is sent to all servers at the same time, and is decided as soon as a majority has replied, so a server that is
//! down or hangs delays no caller. The other requests stay in flight. Each server has a separate record of them, and each lock is
//! released there as on a single server. There is no queue, so waiters poll.
//!
//! - `ballot`: the vote, without I/O: which fencing token to propose, and how replies are counted;
//! - `redlock_server`: one server, as this process knows it; `restart_quarantine`: the rule that decides when it may vote;
//! - `at_servers`: one lock on each of the servers;
//! - `requests`, `renew`: acquires and releases, and renewals; `waist`: all requests of the driver;
//! - `back_off`: letting other processes go first.

use std::{collections::HashSet, fmt, sync::Arc, time::Duration};

use tokio::sync::mpsc;

use crate::{
    backend::{
        Backend, Reply,
        redis::{protocol::redis_store::Settings, transport::address::Named},
        redlock::{
            back_off::BackOff,
            ballot::quorum::{Replies, reached_by_majority},
            redlock_server::RedlockServer,
        },
    },
    error::LockError,
    failure::Failure,
    fencing::{PER_MILLI, in_tokens},
    runtime::{clock::wall_clock, executor::spawn_detached, mutex::Mutex},
};

mod at_servers;
mod back_off;
mod ballot;
mod redlock_server;
mod renew;
mod requests;
pub(crate) mod restart_quarantine;
mod waist;

/// The next number is not derived from an earlier one that is further than this ahead of the servers' clocks.
const FAR_AHEAD: u64 = 500 * PER_MILLI;

#[derive(Clone)]
pub(crate) struct RedlockBackend(Arc<RedlockServers>);

/// The servers that vote, and the knowledge of this process about all of them together.
struct RedlockServers {
    servers: Vec<Arc<RedlockServer>>,
    settings: Settings,
    /// The largest number that this process proposed.
    last_number: Mutex<u64>,
    back_off: BackOff,
}

impl RedlockBackend {
    /// Creates the backend, which connects with the first request. `quarantine` is how long a server must have been
    /// watched before it votes.
    pub(crate) fn new(
        named: &[Named],
        settings: Settings,
        quarantine: Duration,
    ) -> Result<Self, LockError> {
        check_list(named)?;
        let run_ids = Arc::default();
        let servers = named.iter().enumerate().map(|(place, named)| {
            let server = RedlockServer::new(place, named, &settings, quarantine, &run_ids);
            server.map(Arc::new).map_err(|error| in_place(place, error))
        });
        let servers = servers.collect::<Result<_, _>>()?;
        Ok(Self(Arc::new(RedlockServers {
            servers,
            settings,
            last_number: Mutex::new(0),
            back_off: BackOff::default(),
        })))
    }

    /// Opens the first connections, and verifies which servers they lead to. A majority must reply, and no server may
    /// be listed twice. Servers that may not vote yet are not a failure here.
    pub(crate) fn greet(&self) -> Reply<()> {
        let servers = self.0.clone();
        Box::pin(async move {
            let connect = |server: Arc<RedlockServer>| async move { server.connect().await };
            let replies = servers.all_replies(connect).await;
            // Any mistake fails here, since nothing has been locked yet, and it would be worse to find it when another server is down.
            let mut failures = replies.failures();
            if let Some(invalid) = failures.find(|one| matches!(one, Failure::Invalid(_))) {
                return Err(invalid.clone());
            }
            replies.result()?;
            if let Some(warning) = servers.settings.scope.warning() {
                tracing::warn!("{warning}");
            }
            Ok(())
        })
    }
}

impl fmt::Debug for RedlockBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.0.servers.iter().map(|server| &server.node))
            .finish()
    }
}

impl RedlockServers {
    fn count(&self) -> usize {
        self.servers.len()
    }

    /// Sends a request to every server, as [`spawn_each`] does. The replies come with the positions of the servers.
    fn request_all<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        request: impl Fn(usize, Arc<RedlockServer>) -> F,
    ) -> mpsc::UnboundedReceiver<(usize, T)> {
        let (sender, incoming) = mpsc::unbounded_channel();
        let each = self.servers.iter().enumerate();
        let each = each.map(|(position, server)| {
            let reply = request(position, server.clone());
            async move { (position, reply.await) }
        });
        spawn_each(&sender, each);
        incoming
    }

    /// Sends a request to every server, and waits for all replies.
    async fn all_replies<T, F>(&self, request: impl Fn(Arc<RedlockServer>) -> F) -> Replies<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        let mut incoming = self.request_all(|_, server| request(server));
        let mut replies = Replies::of(self.count());
        while let Some((server, reply)) = incoming.recv().await {
            replies.note(server, reply);
        }
        replies
    }

    /// Returns the number of the first proposal, which is the last one of a block of `count` tokens. It is the time at which
    /// the servers will receive it, raised where necessary so that it exceeds every number that this process knows or
    /// has proposed.
    fn next_number(&self, known: u64, count: u32) -> u64 {
        let clocks = self.servers.iter().filter_map(|server| server.clock());
        let time = reached_by_majority(self.count(), clocks)
            .unwrap_or_else(|| in_tokens(wall_clock()))
            .saturating_add(in_tokens(self.round_trip()));
        let count = u64::from(count);
        let mut last = self.last_number.lock();
        let mut number = time.max(known + count);
        // A wrong proposal, made by a clock that has since been set back, must not make the next ones wrong.
        if *last < number + FAR_AHEAD {
            number = number.max(*last + count);
        }
        *last = number;
        number
    }

    /// Returns twice the round trip, plus the usual difference between clocks within a data centre, in tokens.
    fn slack(&self) -> u64 {
        in_tokens(self.round_trip() * 2) + PER_MILLI / 2
    }

    fn round_trip(&self) -> Duration {
        let known = (self.servers.iter()).map(|server| server.node.traits().round_trip);
        let known = known.filter(|time| !time.is_zero());
        reached_by_majority(self.count(), known).unwrap_or_default()
    }

    /// Returns how long one server may take to reply to a request for a lock with this ttl: a small part of the ttl, but enough
    /// for a few round trips.
    fn patience(&self, ttl: Duration) -> Duration {
        let enough = (self.round_trip() * 4).max(Duration::from_millis(20));
        (ttl / 10)
            .max(enough)
            .min(Duration::from_millis(500))
            .min(self.settings.timing.command_timeout)
    }
}

/// Adds to an error the position of the url that it is about.
fn in_place(place: usize, error: LockError) -> LockError {
    match error {
        LockError::Invalid { key: None, reason } => {
            LockError::invalid(format!("url {} of the list: {reason}", place + 1))
        }
        other => other,
    }
}

/// Verifies the number of servers, and that no url is listed twice. A server behind two urls is detected when it replies.
fn check_list(named: &[Named]) -> Result<(), LockError> {
    let (count, mut urls) = (named.len(), HashSet::new());
    let is_twin = |named: &Named| matches!(named, Named::Url(url) if !urls.insert(url.clone()));
    Err(LockError::invalid(if count < 3 {
        format!(
            "Redlock needs at least three independent servers; got {count}: list three or five, or connect to a single one"
        )
    } else if count.is_multiple_of(2) {
        let less = count - 1;
        format!("{count} servers tolerate no more failures than {less}; use an odd number")
    } else if named.iter().any(is_twin) {
        "a server is listed twice: list each server once, or its vote counts twice".to_owned()
    } else {
        return Ok(());
    }))
}

/// Sends requests at the same time, each in a separate task, so that none delays another. They continue even after the caller has
/// stopped waiting for their replies.
fn spawn_each<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    sender: &mpsc::UnboundedSender<T>,
    requests: impl IntoIterator<Item = F>,
) {
    for request in requests {
        let sender = sender.clone();
        spawn_detached(async move {
            // The receiver is gone once the result is decided.
            drop(sender.send(request.await));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_proposal_is_above_the_known_and_the_proposed_numbers() {
        let named = [0, 1, 2].map(|place| Named::Url(format!("redis://h{place}")));
        let redlock = RedlockBackend::new(&named, Settings::default(), Duration::ZERO);
        let servers = redlock.expect("valid urls").0;
        let first = servers.next_number(0, 1);
        assert!(servers.next_number(0, 1) > first);
        let second = servers.next_number(first + 1000, 1);
        assert!(second > first + 1000);
        // All tokens of a block.
        assert!(servers.next_number(0, 64) - 64 >= second);
        // A proposal made by a clock that has since been set back.
        let astray = first + 10 * FAR_AHEAD;
        *servers.last_number.lock() = astray;
        assert!(servers.next_number(0, 1) < astray);
    }
}
