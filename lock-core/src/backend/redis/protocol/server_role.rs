//! Whether a server is the one that accepts writes.

use std::time::Duration;

use redis::Value;
use tokio::time::{sleep, timeout};

use crate::{
    backend::{
        in_flight::ConnectionId,
        redis::{
            protocol::redis_store::RedisStore,
            topology::key_location::KeyLocation,
            transport::{CLOCK, command::Arg::Text, reply},
        },
    },
    failure::Failure,
    moment::Moment,
};

/// How long a server may take to become the primary before it is asked again.
const PROMOTION_PAUSE: Duration = Duration::from_millis(100);

/// Waits until the server is a primary. If it may not be asked for its role, it counts as one.
///
/// At `until` its caller gives the whole trial up, and leaves it to the locks to retry. A replica must not pass for a primary by that, so
/// the wait ends earlier, even if the last question has no reply yet.
pub(crate) async fn expect_a_primary(
    store: &RedisStore,
    location: &KeyLocation,
    until: Moment,
) -> Result<(), Failure> {
    if !location.capabilities(store.within()).await?.forwards_all() {
        return Ok(());
    }
    let mut role = role_of(store, location).await?;
    // Bounded by the time for a connect.
    while let Role::Replica(id, refusal) = role {
        let left = || until.since(CLOCK.now()).saturating_sub(PROMOTION_PAUSE);
        if left() <= PROMOTION_PAUSE {
            return Err(refusal);
        }
        // A name may lead to another server by then.
        location.server.connection.forget(id);
        sleep(PROMOTION_PAUSE).await;
        role = match timeout(left(), role_of(store, location)).await {
            Ok(role) => role?,
            Err(_) => return Err(refusal),
        };
    }
    Ok(())
}

enum Role {
    Primary,
    /// On this connection, with the failure of a connect if it stays one.
    Replica(ConnectionId, Failure),
}

async fn role_of(store: &RedisStore, location: &KeyLocation) -> Result<Role, Failure> {
    let connection = &location.server.connection;
    let words = [Text("INFO"), Text("replication")];
    let (id, reply) = connection.send(&[&words], store.within(), None).await?;
    let info = match &reply {
        Value::ServerError(_) => None,
        reply => reply::info(reply),
    };
    let server = connection.address().shown();
    let Some(info) = info else {
        tracing::warn!(
            server,
            "INFO is refused, so whether the server accepts writes of others at the same time is not known"
        );
        return Ok(Role::Primary);
    };
    let field = |name| reply::info_field(&info, name).unwrap_or_default();
    match field("role") {
        "active-replica" => Err(Failure::invalid(format!(
            "{server} is an active replica: two servers accept writes, and the last one wins, so two clients can hold one lock; use a \
             server without `active-replica`"
        ))),
        "slave" => {
            let primary = format!("{}:{}", field("master_host"), field("master_port"));
            let refusal = Failure::not_now(format!(
                "{server} is a replica of {primary}: connect to the primary, or to sentinels by `redis+sentinel://`"
            ));
            Ok(Role::Replica(id, refusal))
        }
        _ => Ok(Role::Primary),
    }
}
