//! The calls for operators, on several servers.

use std::sync::Arc;

use crate::{
    backend::{
        Operate,
        owner_token::sighting_of,
        redlock::{
            ballot::quorum::{Replies, reached_by_majority},
            redlock_server::RedlockServer,
            redlock_servers::RedlockServers,
        },
    },
    failure::Failure,
    fencing::{KnownTokens, PER_MILLI},
    inspect::{Health, Sighting, Topic, Warning},
};

/// A server's clock may differ from a majority's by this much before it is mentioned. Beyond twice as much it cannot vote.
const CLOCK_TOLERANCE: u64 = 500 * PER_MILLI;

pub(super) async fn inspect(
    servers: Arc<RedlockServers>,
    full_key: Arc<str>,
) -> Result<Option<Sighting>, Failure> {
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
}

/// A minority that does not work is worth a warning, since one more failure is an outage.
pub(super) async fn check(servers: Arc<RedlockServers>) -> Result<Health, Failure> {
    let check = |server: Arc<RedlockServer>| async move {
        let waits = server.greet().await?;
        let none = Arc::new(KnownTokens::of_clocks(0));
        Ok((waits, server.node.check(none).await?))
    };
    let replies = servers.all_replies(check).await;
    let mut warnings = Vec::new();
    for (position, reply) in replies.each() {
        let server = &servers.servers[position];
        let name = server.node.shown();
        match reply {
            Ok((waits, health)) => {
                let own = health.warnings.iter();
                warnings.extend(
                    own.map(|Warning { topic, text }| topic.warning(format!("{name}: {text}"))),
                );
                if !waits.is_zero() {
                    warnings.push(Topic::Votes.warning(server.forgetful(*waits)));
                }
            }
            Err(failure) => {
                let silent = format!("{name} does not vote: {}", failure.text());
                warnings.push(Topic::Votes.warning(silent));
            }
        }
    }
    let clocks = clock_warnings(&servers).into_iter();
    warnings.extend(clocks.map(|text| Topic::Clock.warning(text)));
    warnings.extend(servers.scope.warning());
    let voting = replies.said().filter(|(waits, _)| waits.is_zero());
    let times = voting.map(|(_, health)| health.round_trip);
    if let Some(round_trip) = reached_by_majority(servers.count(), times) {
        return Ok(Health {
            round_trip,
            warnings,
        });
    }
    let texts: Vec<_> = warnings.into_iter().map(|warning| warning.text).collect();
    Err(replies.failure(texts.join("; ")))
}

/// A server with a clock far from the others' refuses what they accept.
fn clock_warnings(servers: &RedlockServers) -> Vec<String> {
    let all = || servers.servers.iter();
    let mut warnings: Vec<_> = all().filter_map(|one| one.clock_warning()).collect();
    let ahead = all().filter_map(|one| one.ahead());
    if let Some(middle) = reached_by_majority(servers.count(), ahead) {
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
