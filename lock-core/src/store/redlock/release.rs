//! Releasing a lock on several servers.

use std::sync::Arc;

use crate::store::{
    Failure, Release, ReleaseOutcome, Released,
    in_flight::ConnectionId,
    redlock::{
        ballot::quorum::Verdict,
        in_flight::{ReleaseDuty, ServerInFlight, of_servers},
        server::RedlockServer,
        servers::RedlockServers,
        voting_round::no_majority,
    },
};

/// Sends a release to all servers that may have the lock and have no final reply, and returns as soon as a majority released it.
/// The state of each server is kept in the in-flight record of the acquire, so that a repeated release goes to the others only.
pub(super) async fn release(
    servers: &Arc<RedlockServers>,
    request: Release,
) -> Result<Released, Failure> {
    let count = servers.servers.len();
    let duties: Vec<ReleaseDuty> = of_servers(&request.acquire_in_flight, count)
        .iter()
        .map(ServerInFlight::begin_release)
        .collect();
    let mut tally = servers.tally();
    for duty in &duties {
        match duty {
            ReleaseDuty::AlreadyReleased(ReleaseOutcome::Released) => tally.yes(),
            ReleaseDuty::AlreadyReleased(ReleaseOutcome::NotOurs) | ReleaseDuty::NothingSent => {
                tally.no();
            }
            ReleaseDuty::ReleaseOnce | ReleaseDuty::ReleaseAgain => {}
        }
    }
    // The caller has its result: this is for the servers without a reply.
    let was_decided = tally.verdict().is_some();
    if duties.iter().any(|duty| duty.is_open()) {
        request.in_flight.note_sent_on(ConnectionId::ALL);
    }
    let mut answers = servers.ask_all(|server, member| {
        let (request, duty) = (request.clone(), duties[server]);
        async move { release_at(&member, server, count, request, duty).await }
    });
    let mut failures = Vec::new();
    while let Some((_, answer)) = answers.recv().await {
        match answer {
            None => {}
            Some(Ok(ReleaseOutcome::Released)) => tally.yes(),
            Some(Ok(ReleaseOutcome::NotOurs)) => tally.no(),
            Some(Err(failure)) => {
                tally.silent();
                failures.push(failure);
            }
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
    let is_over = |duty: ReleaseDuty| !duty.is_open();
    let records = of_servers(&request.acquire_in_flight, count);
    let all = records.iter().all(|record| is_over(record.begin_release()));
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
    if !duty.is_open() {
        return None;
    }
    let acquired = request.acquire_in_flight.clone();
    // The connection of this request does not matter: releasing the key is what it may have done.
    let request = Release {
        entry: None,
        in_flight: Arc::default(),
        ..request
    };
    Some(match member.node.release(request).await {
        Ok(Released {
            outcome,
            connection,
        }) => {
            of_servers(&acquired, count)[server].note_released(duty, connection, outcome);
            Ok(outcome)
        }
        Err(failure) => Err(failure),
    })
}
