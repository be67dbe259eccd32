//! The calls for operators, on several servers.

use std::sync::Arc;

use crate::{
    backend::{
        Operate,
        owner_token::sighting_of,
        redlock::{
            ballot::quorum::{self, reached_by_majority},
            redlock_servers::RedlockServers,
        },
    },
    failure::Failure,
    fencing::{KnownTokens, PER_MILLI},
    inspect::{Health, Sighting, Topic},
};

/// A server's clock may differ from a majority's by this much before it is mentioned. Beyond twice as much it cannot vote.
const CLOCK_TOLERANCE: u64 = 500 * PER_MILLI;

pub(super) async fn inspect(
    servers: Arc<RedlockServers>,
    full_key: Arc<str>,
) -> Result<Option<Sighting>, Failure> {
    let count = servers.servers.len();
    let mut incoming = servers.request_all(|_, server| {
        let full_key = full_key.clone();
        async move { server.node.see(full_key).await }
    });
    let (mut seen, mut failures) = (Vec::new(), Vec::new());
    while let Some((_, reply)) = incoming.recv().await {
        match reply {
            Ok(lock) => seen.push(lock),
            Err(failure) => failures.push(failure),
        }
        if let Some(found) = quorum::holder_of_majority(count, &seen) {
            return Ok(found.map(|(token, left)| sighting_of(token, left, 0)));
        }
    }
    Err(quorum::no_majority(count, &failures))
}

/// A minority that does not work is worth a warning, since one more failure is an outage.
pub(super) async fn check(servers: Arc<RedlockServers>) -> Result<Health, Failure> {
    let mut incoming = servers.request_all(|_, server| async move {
        let waits = server.greet().await?;
        let health = server
            .node
            .check(Arc::new(KnownTokens::of_clocks(0)))
            .await?;
        Ok::<_, Failure>((waits, health))
    });
    let (mut warnings, mut failures, mut times) = (Vec::new(), Vec::new(), Vec::new());
    while let Some((position, reply)) = incoming.recv().await {
        let name = servers.servers[position].node.shown();
        match reply {
            Ok((waits, health)) => {
                warnings.extend(health.warnings);
                if waits.is_zero() {
                    times.push(health.round_trip);
                } else {
                    let forgetful = servers.servers[position].forgetful(waits);
                    warnings.push(Topic::Votes.warning(forgetful));
                }
            }
            Err(failure) => {
                let silent = format!("{name} does not vote: {}", failure.text());
                warnings.push(Topic::Votes.warning(silent));
                failures.push(failure);
            }
        }
    }
    let clocks = clock_warnings(&servers).into_iter();
    warnings.extend(clocks.map(|text| Topic::Clock.warning(text)));
    warnings.extend(servers.scope.warning());
    if let Some(round_trip) = reached_by_majority(servers.servers.len(), times) {
        return Ok(Health {
            round_trip,
            warnings,
        });
    }
    let invalid = |failure: &Failure| matches!(failure, Failure::Invalid(_));
    let texts: Vec<_> = warnings.into_iter().map(|warning| warning.text).collect();
    let none = || Failure::no_reply(texts.join("; "));
    Err(failures.into_iter().find(invalid).unwrap_or_else(none))
}

/// A server with a clock far from the others' refuses what they accept.
fn clock_warnings(servers: &RedlockServers) -> Vec<String> {
    let all = || servers.servers.iter();
    let mut warnings: Vec<_> = all().filter_map(|one| one.clock_warning()).collect();
    let ahead = all().filter_map(|one| one.ahead()).collect();
    if let Some(middle) = reached_by_majority(servers.servers.len(), ahead) {
        let is_far = |ahead: i64| ahead.abs_diff(middle) > CLOCK_TOLERANCE;
        let far = all().filter(|one| one.ahead().is_some_and(is_far));
        warnings.extend(far.map(|one| {
            format!(
                "the clock of {} is not that of the others: synchronise it, or it cannot vote",
                one.node.shown()
            )
        }));
    }
    warnings
}
