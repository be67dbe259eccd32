//! The servers that vote, as this process knows them together.

use std::{collections::HashSet, sync::Arc, time::Duration};

use tokio::sync::mpsc;

use crate::{
    backend::{
        Backend,
        redis::{
            protocol::redis_store::{Scope, Settings},
            transport::address::Named,
        },
        redlock::{
            back_off::BackOff,
            ballot::quorum::{Replies, reached_by_majority},
            redlock_server::RedlockServer,
        },
        timing::Timing,
    },
    error::LockError,
    failure::Failure,
    fencing::{PER_MILLI, in_tokens},
    runtime::{
        clock::wall_clock,
        executor::{Executor, spawn_beside},
        mutex::Mutex,
    },
};

/// The next number is not derived from a number that is further ahead of the servers' clocks than this.
const FAR_AHEAD: u64 = 500 * PER_MILLI;

/// The servers that vote, and what this process knows of all of them together.
pub(super) struct RedlockServers {
    pub(super) servers: Vec<Arc<RedlockServer>>,
    pub(super) timing: Timing,
    pub(super) scope: Scope,
    /// Where the manager's work runs.
    pub(super) executor: Executor,
    /// The largest number that this process proposed.
    last_number: Mutex<u64>,
    pub(super) back_off: BackOff,
}

impl RedlockServers {
    pub(super) fn new(
        named: &[Named],
        settings: &Settings,
        quarantine: Duration,
    ) -> Result<Self, LockError> {
        check_list(named)?;
        let run_ids = Arc::default();
        let servers = named.iter().enumerate().map(|(place, named)| {
            let server = RedlockServer::new(place, named, settings, quarantine, &run_ids);
            server.map(Arc::new).map_err(|error| in_place(place, error))
        });
        Ok(Self {
            servers: servers.collect::<Result<_, _>>()?,
            timing: settings.timing,
            scope: settings.scope.clone(),
            executor: settings.executor.clone(),
            last_number: Mutex::new(0),
            back_off: BackOff::default(),
        })
    }

    pub(super) fn count(&self) -> usize {
        self.servers.len()
    }

    /// Sends a request to every server, as in [`spawn_each`]. The replies come with the positions of the servers.
    pub(super) fn request_all<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
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
    pub(super) async fn all_replies<T: Send + 'static, F>(
        &self,
        request: impl Fn(Arc<RedlockServer>) -> F,
    ) -> Replies<T>
    where
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        let mut incoming = self.request_all(|_, server| request(server));
        let mut replies = Replies::of(self.count());
        while let Some((server, reply)) = incoming.recv().await {
            replies.note(server, reply);
        }
        replies
    }

    /// The number of the first proposal: the last one of a block of `count` tokens. It is the time at which the servers
    /// will receive it, but above all numbers that this process knows or has proposed.
    pub(super) fn next_number(&self, known: u64, count: u32) -> u64 {
        let clocks = self.servers.iter().filter_map(|server| server.clock());
        let time = reached_by_majority(self.count(), clocks)
            .unwrap_or_else(|| in_tokens(wall_clock()))
            .saturating_add(in_tokens(self.round_trip()));
        let count = u64::from(count);
        let mut last = self.last_number.lock();
        let mut number = time.max(known + count);
        // A wrong proposal, by a clock that was set back since, must not make the next ones wrong.
        if *last < number + FAR_AHEAD {
            number = number.max(*last + count);
        }
        *last = number;
        number
    }

    /// Twice the time of a message, plus the difference of two clocks within a data centre, in tokens.
    pub(super) fn slack(&self) -> u64 {
        in_tokens(self.round_trip() * 2) + PER_MILLI / 2
    }

    pub(super) fn round_trip(&self) -> Duration {
        let known = self.servers.iter();
        let known = known.map(|server| server.node.traits().round_trip);
        let known = known.filter(|time| !time.is_zero());
        reached_by_majority(self.count(), known).unwrap_or_default()
    }

    /// How long one server may take to reply about a lock with this ttl. It is a small part of the ttl, but time enough for a few
    /// round trips.
    pub(super) fn patience(&self, ttl: Duration) -> Duration {
        let enough = (self.round_trip() * 4).max(Duration::from_millis(20));
        (ttl / 10)
            .max(enough)
            .min(Duration::from_millis(500))
            .min(self.timing.command_timeout)
    }
}

/// Adds to an error which url of the list it is about.
fn in_place(place: usize, error: LockError) -> LockError {
    match error {
        LockError::Invalid { key: None, reason } => {
            LockError::invalid(format!("url {} of the list: {reason}", place + 1))
        }
        other => other,
    }
}

/// Verifies the number of servers, and that no url is listed twice. One server behind two urls is found out when it replies.
fn check_list(named: &[Named]) -> Result<(), LockError> {
    let count = named.len();
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
    let mut urls = HashSet::new();
    let mut all = named.iter();
    if all.any(|named| matches!(named, Named::Url(url) if !urls.insert(url))) {
        return Err(LockError::invalid(
            "one server is listed twice: name each once, or its vote counts twice",
        ));
    }
    Ok(())
}

/// Sends requests at the same time, each in a task of its own, so that none delays another. They continue when no caller waits for the
/// replies any more.
pub(super) fn spawn_each<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    sender: &mpsc::UnboundedSender<T>,
    requests: impl IntoIterator<Item = F>,
) {
    for request in requests {
        let sender = sender.clone();
        spawn_beside(async move {
            // The receiver is gone once the result is decided.
            drop(sender.send(request.await));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_proposal_is_above_what_is_known_and_above_the_last_one() {
        let settings = Settings::default();
        let named = [0, 1, 2].map(|place| Named::Url(format!("redis://h{place}")));
        let servers = RedlockServers::new(&named, &settings, Duration::ZERO);
        let servers = servers.expect("whole urls");
        let first = servers.next_number(0, 1);
        assert!(servers.next_number(0, 1) > first);
        let second = servers.next_number(first + 1000, 1);
        assert!(second > first + 1000);
        // All of a block.
        assert!(servers.next_number(0, 64) - 64 >= second);
        // By a clock that was set back since.
        let astray = first + 10 * FAR_AHEAD;
        *servers.last_number.lock() = astray;
        assert!(servers.next_number(0, 1) < astray);
    }
}
