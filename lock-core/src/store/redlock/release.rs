//! Releasing a lock on several servers: a release at each of them, and a count of the results.

use std::sync::Arc;

use crate::store::{
    CertainRelease, Failure, Release, ReleaseOutcome, Store,
    redlock::{
        ballot::quorum::{Verdict, no_majority},
        servers::RedlockServers,
    },
};

/// Releases at all servers that may have the lock, and returns as soon as a majority has replied. Each server has a release of its
/// own, which goes on until it is certain there.
pub(super) async fn release(
    servers: Arc<RedlockServers>,
    release: CertainRelease,
) -> Result<ReleaseOutcome, Failure> {
    let count = servers.servers.len();
    let acquire_in_flight = release.request.acquire_in_flight.clone();
    let records = acquire_in_flight.servers(count);
    let mut answers = servers.ask_all(|server, member| {
        let record = records[server].clone();
        let release = CertainRelease {
            request: Release {
                in_flight: Arc::default(),
                acquire_in_flight: record.in_flight.clone(),
                ..release.request.clone()
            },
            ..release.clone()
        };
        async move {
            if record.close().await {
                member.node.release(release).await
            } else {
                Ok(ReleaseOutcome::NotOurs)
            }
        }
    });
    let (mut tally, mut failures) = (servers.tally(), Vec::new());
    while tally.verdict().is_none()
        && let Some((_, answer)) = answers.recv().await
    {
        let outcome = answer.as_ref();
        tally.count(outcome.map(|outcome| *outcome == ReleaseOutcome::Released));
        failures.extend(answer.err());
    }
    match tally.verdict() {
        Some(Verdict::Yes) => Ok(ReleaseOutcome::Released),
        Some(Verdict::No) => Ok(ReleaseOutcome::NotOurs),
        _ => Err(Failure::no_answer(no_majority(count, &failures))),
    }
}
