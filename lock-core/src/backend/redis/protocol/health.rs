//! Whether a server is fit for locks.

use std::time::Duration;

use redis::Value;
use tokio::time::sleep;

use crate::{
    backend::redis::{
        protocol::{
            redis_store::{Acked, RedisStore},
            rights, trial,
        },
        topology::key_location::KeyLocation,
        transport::{CLOCK, command::Arg::Text, errors, reply},
    },
    failure::Failure,
    fencing::KnownTokens,
    inspect::{Health, Topic},
    moment::Moment,
    runtime::clock::wall_clock,
};

/// How long a server may take to become the primary before it is asked again.
const PROMOTION_PAUSE: Duration = Duration::from_millis(100);

/// A server's clock may differ from this process's by this much before it is mentioned.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(10);

/// Tries a lock on each server, and reads the settings that can hurt locks. That is seven commands a server where scripts run,
/// and four more if the server has forgotten the scripts.
pub(crate) async fn check(
    store: &RedisStore,
    known_tokens: &KnownTokens,
) -> Result<Health, Failure> {
    let mut health = Health {
        round_trip: Duration::ZERO,
        warnings: Vec::new(),
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
    let asked = if known.forwards_all() { "TIME" } else { "PING" };
    let sent = CLOCK.now();
    let (_, time) = connection.send(&[&[Text(asked)]], within, None).await?;
    health.round_trip = health.round_trip.max(CLOCK.now().since(sent));
    let clock = clock_warning(errors::of_value(time)?);
    let info = connection.info("memory", within).await?;
    let scripts = (!known.scripts).then(|| rights::without_scripts(store.0.timing.polling_pause));
    let server = connection.address().shown();
    let found = [
        (Topic::Latency, slow),
        (Topic::Clock, clock),
        (Topic::Eviction, eviction_warning(info.as_deref())),
        (Topic::Rights, scripts),
    ];
    for (topic, text) in found {
        let warning = |text| topic.warning(format!("{server}: {text}"));
        health.warnings.extend(text.map(warning));
    }
    Ok(())
}

/// Fencing tokens follow the server's clock, so that they grow across a loss of data.
fn clock_warning(time: Value) -> Option<String> {
    let Ok((seconds, micros)) = redis::from_redis_value(time) else {
        let unknown = "the server's clock, which fencing tokens follow, is not known: a proxy does not forward `TIME`";
        return Some(unknown.to_owned());
    };
    let theirs = Duration::from_secs(seconds) + Duration::from_micros(micros);
    let apart = theirs.abs_diff(wall_clock());
    (apart > CLOCK_TOLERANCE).then(|| {
        format!(
            "the server's clock differs from this machine's by {} s: synchronise both, since fencing tokens follow it",
            apart.as_secs()
        )
    })
}

/// Locks are keys with an expiry, which every eviction policy but one may delete.
pub(super) fn eviction_warning(info: Option<&str>) -> Option<String> {
    let Some(info) = info else {
        return Some(
            "the eviction policy and the role are not known, since `INFO` is refused: grant this user `+info`, or make sure that the \
             policy is `noeviction`, and that no other server accepts writes, as active replicas do"
                .to_owned(),
        );
    };
    let field = |name| reply::info_field(info, name);
    match (field("maxmemory"), field("maxmemory_policy")) {
        (Some("0"), _) | (_, Some("noeviction") | None) => None,
        (_, Some(policy)) => Some(format!(
            "the server may evict locks when its memory is full (maxmemory-policy {policy}): set it to `noeviction`, or keep locks on a \
             server of their own"
        )),
    }
}

/// Waits until the server is a primary, and returns what it reports about itself. If it may not be asked, it counts as a primary.
pub(super) async fn expect_a_primary(
    store: &RedisStore,
    location: &KeyLocation,
    until: Moment,
) -> Result<Option<String>, Failure> {
    let connection = &location.server.connection;
    let server = connection.address().shown();
    // Bounded by the time for a connect, and one reply.
    loop {
        let Some(info) = connection.info("default", store.within()).await? else {
            return Ok(None);
        };
        let field = |name| reply::info_field(&info, name).unwrap_or_default();
        match field("role") {
            "active-replica" => {
                return Err(Failure::invalid(format!(
                    "{server} is an active replica: two servers accept writes, and the last one wins, so two clients can hold one \
                     lock; use a server without `active-replica`"
                )));
            }
            // The map of a cluster names the primaries, and may be stale.
            "slave" if store.0.servers.are_several() => return Ok(Some(info)),
            "slave" if CLOCK.now().after(PROMOTION_PAUSE) < until => {
                // A name may lead to another server by then.
                connection.doubt();
                sleep(PROMOTION_PAUSE).await;
            }
            "slave" => {
                let primary = format!("{}:{}", field("master_host"), field("master_port"));
                return Err(Failure::not_now(format!(
                    "{server} is a replica of {primary}: connect to the primary, or to sentinels by `redis+sentinel://`"
                )));
            }
            _ => return Ok(Some(info)),
        }
    }
}
