//! The check of whether a server is suitable for locks.

use std::time::Duration;

use redis::Value;

use crate::{
    backend::redis::{
        protocol::{
            redis_store::{Acked, RedisStore},
            rights, server_info, trial,
        },
        topology::key_location::KeyLocation,
        transport::{CLOCK, command::Arg::Text, errors},
    },
    failure::Failure,
    fencing::KnownTokens,
    inspect::{Health, Topic},
    runtime::clock::wall_clock,
};

/// The difference between a server's clock and that of this process above which there is a warning.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(10);

const HIDDEN: &str = "a proxy in front of the server forwards neither INFO nor TIME, so the eviction policy, which must be `noeviction`, \
                      and the server's clock, which fencing tokens follow, are not known: check the server itself";

/// Tries a lock on each server, and reads the settings that can endanger locks. This takes seven commands per server
/// if it runs scripts, and five more if it has forgotten the scripts.
pub(crate) async fn check(
    store: &RedisStore,
    known_tokens: &KnownTokens,
) -> Result<Health, Failure> {
    let mut health = Health {
        round_trip: Duration::ZERO,
        warnings: Vec::new(),
        servers: Vec::new(),
    };
    for location in store.0.servers.each() {
        let checked = check_one(store, &location, known_tokens, &mut health).await;
        checked.map_err(|failure| rights::explained(&location, failure))?;
    }
    // With several servers, this warning is given once for all of them.
    if !store.0.is_one_of_several {
        health.warnings.extend(store.0.scope.warning());
    }
    Ok(health)
}

async fn check_one(
    store: &RedisStore,
    location: &KeyLocation,
    known_tokens: &KnownTokens,
    health: &mut Health,
) -> Result<(), Failure> {
    let slow = trial::try_a_lock(store, location, Acked::Must, known_tokens).await?;
    let (connection, within) = (&location.server.connection, store.within());
    let known = location.capabilities(within).await?;
    // A proxy that does not forward all commands may close the connection at this one.
    let asked = if known.forwards_all { "TIME" } else { "PING" };
    let sent = CLOCK.now();
    let (_, time) = connection.send(&[&[Text(asked)]], within, None).await?;
    health.round_trip = health.round_trip.max(CLOCK.now().since(sent));
    let info = connection.info("default", within).await?;
    if let Some(current) = connection.snapshot() {
        let found = server_info::as_found(store, &current, info.as_deref());
        health.servers.push(found);
    }
    let (mut clock, mut eviction, mut hidden) = (None, None, None);
    if known.forwards_all {
        clock = clock_warning(errors::of_value(time)?)?;
        eviction = server_info::eviction_warning(info.as_deref());
    } else {
        hidden = Some(HIDDEN.to_owned());
    }
    let scripts = (!known.scripts).then(|| rights::without_scripts(store.0.timing.polling_pause));
    let server = connection.address().shown();
    let found = [
        (Topic::Latency, slow),
        (Topic::Clock, clock),
        (Topic::Eviction, eviction),
        (Topic::Rights, scripts),
        (Topic::Proxy, hidden),
    ];
    for (topic, text) in found {
        let warning = |text| topic.warning(format!("{server}: {text}"));
        health.warnings.extend(text.map(warning));
    }
    Ok(())
}

/// Returns a warning if the clocks differ. Fencing tokens follow the server's clock, so that they grow across a loss of data.
fn clock_warning(time: Value) -> Result<Option<String>, Failure> {
    let (seconds, micros) =
        redis::from_redis_value(time).map_err(|_| errors::nonsense("the time"))?;
    let theirs = Duration::from_secs(seconds) + Duration::from_micros(micros);
    let apart = theirs.abs_diff(wall_clock());
    Ok((apart > CLOCK_TOLERANCE).then(|| {
        format!(
            "the server's clock differs from this machine's by {} s: synchronise both, since fencing tokens follow it",
            apart.as_secs()
        )
    }))
}
