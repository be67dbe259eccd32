//! The report of a server about itself: whether it accepts writes, and whether it evicts keys.

use std::time::Duration;

use tokio::time::sleep;

use crate::{
    backend::redis::{
        protocol::redis_store::RedisStore,
        topology::key_location::KeyLocation,
        transport::{CLOCK, connection::CurrentConnection, reply},
    },
    failure::Failure,
    inspect::ServerInfo,
    moment::Moment,
};

/// The pause before a server that is not a primary yet is asked again.
const PROMOTION_PAUSE: Duration = Duration::from_millis(100);

/// Returns a warning if the server may evict locks, which are keys with an expiry: every eviction policy but one may delete
/// them.
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

/// Returns a description of a server as it was found. `info` is its reply to `INFO`.
pub(super) fn as_found(
    store: &RedisStore,
    current: &CurrentConnection,
    info: Option<&str>,
) -> ServerInfo {
    let field = |name| reply::info_field(info?, name).map(str::to_owned);
    let (kind, version) = match (field("valkey_version"), field("redis_version")) {
        (Some(version), _) => (Some("valkey".to_owned()), Some(version)),
        (None, version) => (version.is_some().then(|| "redis".to_owned()), version),
    };
    let scripts = current
        .known
        .capabilities
        .is_some_and(|known| known.scripts);
    let notifies = if store.0.servers.are_several() {
        // Grants arrive on another connection, once a task waits. Redis 6 does not have the channels for that.
        let is_old = version
            .as_ref()
            .is_some_and(|version| version.starts_with("6."));
        scripts && current.known.speaks_resp3 && !is_old
    } else {
        current.known.is_subscribed
    };
    ServerInfo {
        // With sentinels, this is the primary that they named.
        address: current.address.shown().to_owned(),
        kind,
        version,
        protocol: if current.known.speaks_resp3 { 3 } else { 2 },
        scripts,
        notifies: notifies && !store.0.is_one_of_several,
    }
}

/// Waits until the server is a primary, and returns its reply to `INFO`. If `INFO` is not available, the server counts
/// as a primary.
pub(super) async fn expect_a_primary(
    store: &RedisStore,
    location: &KeyLocation,
    until: Moment,
) -> Result<Option<String>, Failure> {
    let connection = &location.server.connection;
    let server = connection.address().shown();
    // Bounded by the time-out of a connect, and one reply.
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
                // The name may lead to another server by then.
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
