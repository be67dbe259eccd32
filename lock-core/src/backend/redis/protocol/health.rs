//! Whether a server is fit for locks.

use std::{sync::Arc, time::Duration};

use crate::{
    backend::redis::{
        protocol::{
            redis_store::{Acked, RedisStore},
            rights, trial,
        },
        topology::key_location::KeyLocation,
        transport::{
            CLOCK, command::Arg::Text, errors, reconnecting::ReconnectingConnection, reply,
        },
    },
    failure::Failure,
    fencing::KnownTokens,
    inspect::{Health, Topic},
    runtime::{clock::wall_clock, executor::spawn_beside},
};

/// A server's clock may differ from this process's by this much before it is mentioned.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(10);

const HIDDEN: &str = "a proxy in front of the server forwards neither INFO nor TIME, so the eviction policy, which must be `noeviction`, \
                      and the server's clock, which fencing tokens follow, are not known: look at the server itself";

/// Tries a lock on each server, and reads the settings that can hurt locks. That is six commands a server where scripts run,
/// and four more if the server has forgotten the scripts.
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
        if let Err(failure) = check_one(store, &location, known_tokens, &mut health).await {
            let within = store.0.timing.connect_timeout + store.within();
            return Err(rights::explained(store, &location, failure, within).await);
        }
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
    let sent = CLOCK.now();
    connection.send(&[&[Text("PING")]], within, None).await?;
    health.round_trip = health.round_trip.max(CLOCK.now().since(sent));
    health
        .servers
        .extend(trial::server_info(store, location, within).await);
    let (mut clock, mut eviction, mut hidden) = (None, None, None);
    if known.forwards_all() {
        clock = clock_warning(connection, within).await?;
        eviction = known_eviction_warning(connection, within).await?;
    } else {
        hidden = Some(HIDDEN.to_owned());
    }
    let scripts = if known.scripts {
        None
    } else {
        Some(rights::without_scripts(store, location, within).await)
    };
    let found = [
        (Topic::Latency, slow),
        (Topic::Clock, clock),
        (Topic::Eviction, eviction),
        (Topic::Rights, scripts),
        (Topic::Proxy, hidden),
    ];
    let several = store.0.servers.are_several();
    let front = several.then(|| format!("{}: ", connection.address().shown()));
    let front = front.unwrap_or_default();
    for (topic, text) in found {
        if let Some(text) = text {
            let text = format!("{front}{text}");
            health.warnings.push(topic.warning(text));
        }
    }
    Ok(())
}

/// Fencing tokens follow the server's clock, so that they grow across a loss of data.
async fn clock_warning(
    connection: &Arc<ReconnectingConnection>,
    within: Duration,
) -> Result<Option<String>, Failure> {
    let (_, reply) = connection.send(&[&[Text("TIME")]], within, None).await?;
    let time: (u64, u64) = redis::from_redis_value_ref(&errors::of_value(reply)?)
        .map_err(|_| errors::nonsense("the time"))?;
    let theirs = Duration::from_secs(time.0) + Duration::from_micros(time.1);
    let ours = wall_clock();
    let apart = theirs.abs_diff(ours);
    Ok((apart > CLOCK_TOLERANCE).then(|| {
        format!(
            "the server's clock differs from this machine's by {} s: synchronise both, since fencing tokens follow it",
            apart.as_secs()
        )
    }))
}

/// Warns about an eviction policy, once a manager and server, in a task apart from the connect. If the policy cannot be read,
/// there is no warning; a check reports that.
pub(crate) fn look_at_eviction(store: &RedisStore) {
    store.0.eviction.call_once(|| {
        for location in store.0.servers.each() {
            let within = store.within();
            spawn_beside(async move {
                if !matches!(location.capabilities(within).await, Ok(known) if known.forwards_all())
                {
                    return;
                }
                let server = &location.server;
                if let Ok(Some(warning)) = eviction_warning(&server.connection, within).await {
                    let server = server.connection.address().shown();
                    tracing::warn!(server, "{warning}");
                }
            });
        }
    });
}

/// Like [`eviction_warning`], and warns if the user may not ask.
async fn known_eviction_warning(
    connection: &Arc<ReconnectingConnection>,
    within: Duration,
) -> Result<Option<String>, Failure> {
    match eviction_warning(connection, within).await {
        Err(failure) if errors::lack_of_rights(&failure).is_some() => Ok(Some(
            "this user may not run INFO, so the eviction policy is not known: grant it `+info`, or make sure that it is \
             `noeviction`"
                .to_owned(),
        )),
        warning => warning,
    }
}

/// Locks are keys with an expiry, which every eviction policy but one may delete.
async fn eviction_warning(
    connection: &Arc<ReconnectingConnection>,
    within: Duration,
) -> Result<Option<String>, Failure> {
    let words = [Text("INFO"), Text("memory")];
    let (_, reply) = connection.send(&[&words], within, None).await?;
    let info = reply::info(&errors::of_value(reply)?);
    let info = info.ok_or_else(|| errors::nonsense("INFO"))?;
    let field = |name| reply::info_field(&info, name);
    Ok(match (field("maxmemory"), field("maxmemory_policy")) {
        (Some("0"), _) | (_, Some("noeviction") | None) => None,
        (_, Some(policy)) => Some(format!(
            "the server may evict locks when its memory is full (maxmemory-policy {policy}): set it to `noeviction`, or keep \
             locks on a server of their own"
        )),
    })
}
