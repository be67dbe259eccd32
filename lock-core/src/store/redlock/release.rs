//! Releasing a lock on several servers.

use std::sync::Arc;

use crate::store::{
    Failure, Release, ReleaseOutcome, Released,
    in_flight::ConnectionId,
    redlock::{
        ballot::quorum::{Verdict, no_majority},
        in_flight::{ReleaseDuty, ServerInFlight, of_servers},
        server::RedlockServer,
        servers::RedlockServers,
    },
    until_certain::OneServer,
};

/// Sends a release to all servers that may have the lock and have no final reply, and returns as soon as a majority released it.
/// The state of each server is kept in the in-flight record of the acquire, so that a repeated release goes to the others only.
pub(super) async fn release(
    servers: Arc<RedlockServers>,
    request: Release,
) -> Result<Released, Failure> {
    let count = servers.servers.len();
    let begin = || {
        let records = of_servers(&request.acquire_in_flight, count).iter();
        records.map(ServerInFlight::begin_release)
    };
    let duties: Vec<ReleaseDuty> = begin().collect();
    let mut tally = servers.tally();
    for duty in &duties {
        if let ReleaseDuty::Over(outcome) = duty {
            tally.count(Ok(*outcome == ReleaseOutcome::Released));
        } else {
            request.in_flight.note_sent_on(ConnectionId::ALL);
        }
    }
    // The caller has its result already: this repetition is for the servers without a reply.
    let was_decided = tally.verdict().is_some();
    let mut answers = servers.ask_all(|server, member| {
        let (request, duty) = (request.clone(), duties[server]);
        async move { release_at(&member, server, count, request, duty).await }
    });
    let mut failures = Vec::new();
    while let Some((_, answer)) = answers.recv().await {
        if let Some(answer) = answer {
            let released = answer.as_ref();
            tally.count(released.map(|outcome| *outcome == ReleaseOutcome::Released));
            failures.extend(answer.err());
        }
        if !was_decided && tally.verdict().is_some() {
            break;
        }
    }
    let outcome = match tally.verdict() {
        Some(Verdict::Yes) => ReleaseOutcome::Released,
        Some(Verdict::No) => ReleaseOutcome::NotOurs,
        _ => return Err(Failure::no_answer(no_majority(count, &failures))),
    };
    let all = begin().all(|duty| matches!(duty, ReleaseDuty::Over(_)));
    Ok(Released {
        outcome,
        connection: if all {
            ConnectionId::ALL
        } else {
            ConnectionId::SOME
        },
    })
}

/// Releases at one server, if there is anything to release.
async fn release_at(
    member: &RedlockServer,
    server: usize,
    count: usize,
    request: Release,
    duty: ReleaseDuty,
) -> Option<Result<ReleaseOutcome, Failure>> {
    if let ReleaseDuty::Over(_) = duty {
        return None;
    }
    let acquired = request.acquire_in_flight.clone();
    // The connection of this request need not be recorded: a late copy of it can only release the key.
    let request = Release {
        may_be_queued: false,
        in_flight: Arc::default(),
        ..request
    };
    let released = member.node.release_once(&request).await;
    Some(released.map(|released| {
        let record = &of_servers(&acquired, count)[server];
        record.note_released(duty, released.connection, released.outcome);
        released.outcome
    }))
}
