//! Locks on several independent primaries, of which a majority has to agree (Redlock, by Salvatore Sanfilippo), with fencing
//! tokens that grow.
//!
//! Every request goes to all servers at the same time, and is decided as soon as a majority has replied. So a server that is down
//! or hangs delays no caller. Requests still in flight then continue. Each server has an in-flight record of its own, and each lock
//! is released there as on a single server. There is no queue: waiters poll.
//!
//! - `ballot`: the vote, without I/O: which fencing token to propose, and what the replies add up to;
//! - `redlock_server`: one server, as this process knows it; `restart_quarantine`: whether it may vote; `redlock_servers`: all of them;
//! - `at_servers`: one lock at each of the servers, and its release;
//! - `acquire`, `renew`, `inspect`: the other requests of the waist;
//! - `back_off`: letting other processes in.

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    backend::{
        Acquire, Answered, Backend, Operate, Page, PagePosition, Release, Renew, Reply, Traits,
        at_once,
        on_executor::on_the_manager,
        redis::{protocol::redis_store::Settings, transport::address::Named},
        redlock::{redlock_server::RedlockServer, redlock_servers::RedlockServers},
    },
    engine::reply::{AcquireOutcome, ReleaseOutcome, Renewed},
    error::LockError,
    failure::Failure,
    fencing::KnownTokens,
    inspect::{Health, Sighting},
};

mod acquire;
mod at_servers;
mod back_off;
mod ballot;
mod inspect;
mod redlock_server;
mod redlock_servers;
mod renew;
pub(crate) mod restart_quarantine;

/// The reason why locks on several independent servers are exclusive only.
const EXCLUSIVE_BY_VOTES: &str = "several independent servers (Redlock) agree on one holder of a lock, neither on several nor on the result of a run. Acquire it \
     exclusively, or use a manager on one primary, sentinels or a cluster for this lock";

#[derive(Clone)]
pub(crate) struct RedlockBackend(Arc<RedlockServers>);

impl RedlockBackend {
    /// Connects with the first request. `quarantine` is for how long a server must have been watched before it votes.
    pub(crate) fn new(
        named: &[Named],
        settings: &Settings,
        quarantine: Duration,
    ) -> Result<Self, LockError> {
        let servers = RedlockServers::new(named, settings, quarantine)?;
        Ok(Self(Arc::new(servers)))
    }

    /// Makes the first connections, and verifies which servers they lead to. A majority must reply, and no server may be listed
    /// twice. Servers that may not vote yet are no failure here.
    pub(crate) fn greet(&self) -> Reply<()> {
        let servers = self.0.clone();
        Box::pin(async move {
            let connect = |server: Arc<RedlockServer>| async move { server.connect().await };
            let replies = servers.all_replies(connect).await;
            // Nothing has been locked yet: a mistake about one server is better found now than when another one is down.
            let is_invalid = |failure: &&Failure| matches!(failure, Failure::Invalid(_));
            if let Some(invalid) = replies.failures().find(is_invalid) {
                return Err(invalid.clone());
            }
            replies.result()?;
            if let Some(warning) = servers.scope.warning() {
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

impl Backend for RedlockBackend {
    fn acquire(&self, request: Acquire) -> Reply<Answered<AcquireOutcome>> {
        let acquired = acquire::acquire(self.0.clone(), request);
        on_the_manager(&self.0.executor, acquired)
    }

    fn renew(&self, batch: Vec<Renew>, within: Duration) -> Reply<Vec<Result<Renewed, Failure>>> {
        Box::pin(renew::renew(self.0.clone(), batch, within))
    }

    fn release(&self, request: Release) -> Reply<Answered<ReleaseOutcome>> {
        let released = at_servers::release(self.0.clone(), request);
        on_the_manager(&self.0.executor, released)
    }

    fn traits(&self) -> Traits {
        Traits {
            only_exclusive: Some(EXCLUSIVE_BY_VOTES),
            // One acquire has tokens for as many hand-offs as other processes, which poll, are to wait for.
            prefetches: false,
            round_trip: self.0.round_trip(),
            ..Traits::default()
        }
    }
}

impl Operate for RedlockBackend {
    fn inspect(&self, full_key: Arc<str>) -> Reply<Option<Sighting>> {
        Box::pin(inspect::inspect(self.0.clone(), full_key))
    }

    fn list(&self, _: Arc<str>, _: PagePosition) -> Reply<Page> {
        let reason = "the locks of several independent servers are not listed together: connect to one of them, and list what it has";
        at_once(Err(Failure::Invalid(reason.into())))
    }

    fn force_release(&self, full_key: Arc<str>, known_fencing: u64) -> Reply<()> {
        let servers = self.0.clone();
        // Waits for all servers, since the caller checks next whether the lock is free.
        let force_release = move |server: Arc<RedlockServer>| {
            server.node.force_release(full_key.clone(), known_fencing)
        };
        Box::pin(async move { servers.all_replies(force_release).await.result() })
    }

    /// No result is kept: with a minority of the servers, there could be two of one key.
    fn forget(&self, _: Arc<str>) -> Reply<()> {
        at_once(Ok(()))
    }

    fn check(&self, _: Arc<KnownTokens>) -> Reply<Health> {
        Box::pin(inspect::check(self.0.clone()))
    }
}
