//! The requests of the driver to several servers, by the traits of the waist.

use std::{sync::Arc, time::Duration};

use crate::{
    backend::{
        Acquire, Answered, Backend, Operate, Page, PagePosition, Release, Renew, Reply, Traits,
        at_once,
        on_executor::on_the_manager,
        owner_token::sighting_of,
        redlock::{
            RedlockBackend, RedlockServers,
            ballot::quorum::{Replies, reached_by_majority},
            redlock_server::RedlockServer,
            renew, requests,
        },
    },
    engine::reply::{AcquireOutcome, ReleaseOutcome, Renewed},
    failure::Failure,
    fencing::{KnownTokens, PER_MILLI},
    inspect::{Health, Sighting, Topic},
};

/// The reason why locks on several independent servers are exclusive only.
const EXCLUSIVE_BY_VOTES: &str = "several independent servers (Redlock) can agree only on a single holder of a lock, not on \
                                  several or on the result of a run: acquire it exclusively, or use a manager on one primary, \
                                  sentinels or a cluster for this lock";

/// The most by which a server's clock may differ from a majority's without a warning. Beyond twice that, it cannot
/// vote.
const CLOCK_TOLERANCE: u64 = 500 * PER_MILLI;

impl Backend for RedlockBackend {
    fn acquire(&self, request: Acquire) -> Reply<Answered<AcquireOutcome>> {
        let acquired = requests::acquire(self.0.clone(), request);
        on_the_manager(&self.0.settings.executor, acquired)
    }

    fn renew(&self, batch: Vec<Renew>, within: Duration) -> Reply<Vec<Result<Renewed, Failure>>> {
        Box::pin(renew::renew(self.0.clone(), batch, within))
    }

    fn release(&self, request: Release) -> Reply<Answered<ReleaseOutcome>> {
        let released = requests::release(self.0.clone(), request);
        on_the_manager(&self.0.settings.executor, released)
    }

    fn traits(&self) -> Traits {
        Traits {
            only_exclusive: Some(EXCLUSIVE_BY_VOTES),
            // One acquire returns the tokens for all hand-overs that are allowed while other processes poll.
            prefetches: false,
            round_trip: self.0.round_trip(),
            ..Traits::default()
        }
    }
}

impl Operate for RedlockBackend {
    fn inspect(&self, full_key: Arc<str>) -> Reply<Option<Sighting>> {
        let servers = self.0.clone();
        Box::pin(async move {
            let mut incoming = servers.request_all(|_, server| {
                let full_key = full_key.clone();
                async move { server.node.see(full_key).await }
            });
            let mut replies = Replies::of(servers.count());
            while let Some((server, reply)) = incoming.recv().await {
                replies.note(server, reply);
                if let Some(found) = replies.holder() {
                    return Ok(found.map(|(token, left)| sighting_of(token, left, 0)));
                }
            }
            Err(replies.no_majority())
        })
    }

    fn list(&self, _: Arc<str>, _: PagePosition) -> Reply<Page> {
        let reason = "the locks of several independent servers cannot be listed together: connect to one of them, and \
                      list its locks";
        at_once(Err(Failure::Invalid(reason.into())))
    }

    fn force_release(&self, full_key: Arc<str>, known_fencing: u64) -> Reply<()> {
        let servers = self.0.clone();
        // Waits for all servers, since the caller will next check whether the lock is free.
        let force_release = move |server: Arc<RedlockServer>| {
            server.node.force_release(full_key.clone(), known_fencing)
        };
        Box::pin(async move { servers.all_replies(force_release).await.result() })
    }

    /// Does nothing, because no results are kept: with a minority of the servers, there could be two for one key.
    fn forget(&self, _: Arc<str>) -> Reply<()> {
        at_once(Ok(()))
    }

    fn check(&self, _: Arc<KnownTokens>) -> Reply<Health> {
        Box::pin(check(self.0.clone()))
    }
}

/// Checks all servers. A minority that does not work causes a warning, since one more failure may be an outage.
async fn check(servers: Arc<RedlockServers>) -> Result<Health, Failure> {
    let check = |server: Arc<RedlockServer>| async move {
        let waits = server.greet().await?;
        let none = Arc::new(KnownTokens::of_clocks(0));
        Ok((waits, server.node.check(none).await?))
    };
    let replies = servers.all_replies(check).await;
    let clocks = servers.servers.iter().filter_map(|one| one.clock());
    let middle = reached_by_majority(servers.count(), clocks);
    let mut warnings = Vec::new();
    for (position, reply) in replies.each() {
        let server = &servers.servers[position];
        let name = server.node.shown();
        if let Ok((_, health)) = reply {
            warnings.extend(health.warnings.iter().cloned());
        }
        match reply {
            Ok((waits, _)) if waits.is_zero() => {}
            Ok((waits, _)) => warnings.push(Topic::Votes.warning(server.forgetful(*waits))),
            Err(failure) => {
                let silent = format!("{name} does not vote: {}", failure.text());
                warnings.push(Topic::Votes.warning(silent));
            }
        }
        warnings.extend((server.clock_warning()).map(|text| Topic::Clock.warning(text)));
        // A server with a clock far from the others' refuses what they accept.
        let is_far = |(clock, middle): (u64, _)| clock.abs_diff(middle) > CLOCK_TOLERANCE;
        if server.clock().zip(middle).is_some_and(is_far) {
            warnings.push(Topic::Clock.warning(format!(
                "the clock of {name} differs from those of the others: synchronise it, or it cannot vote"
            )));
        }
    }
    warnings.extend(servers.settings.scope.warning());
    let voting = replies.said().filter(|(waits, _)| waits.is_zero());
    let times = voting.map(|(_, health)| health.round_trip);
    let Some(round_trip) = reached_by_majority(servers.count(), times) else {
        let texts: Vec<_> = warnings.into_iter().map(|warning| warning.text).collect();
        return Err(replies.failure(texts.join("; ")));
    };
    let examined = replies.said();
    Ok(Health {
        round_trip,
        warnings,
        servers: examined
            .flat_map(|(_, health)| health.servers.clone())
            .collect(),
    })
}
