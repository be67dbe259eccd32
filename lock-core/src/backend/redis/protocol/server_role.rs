//! Whether a server is the one that accepts writes.

use std::time::Duration;

use redis::Value;
use tokio::time::sleep;

use crate::{
    backend::redis::{
        protocol::redis_store::RedisStore,
        topology::key_location::KeyLocation,
        transport::{CLOCK, command::Arg::Text, reply},
    },
    failure::Failure,
    moment::Moment,
};

/// How long a server may take to become the primary before it is asked again.
const PROMOTION_PAUSE: Duration = Duration::from_millis(100);

/// Waits until the server is a primary. If it may not be asked for its role, it counts as one.
pub(crate) async fn expect_a_primary(
    store: &RedisStore,
    location: &KeyLocation,
    until: Moment,
) -> Result<(), Failure> {
    let (connection, within) = (&location.server.connection, store.within());
    if !location.capabilities(within).await?.forwards_all() {
        return Ok(());
    }
    // Bounded by the time for a connect.
    loop {
        let words = [Text("INFO"), Text("replication")];
        let (id, reply) = connection.send(&[&words], within, None).await?;
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
            return Ok(());
        };
        let field = |name| reply::info_field(&info, name).unwrap_or_default();
        match field("role") {
            "active-replica" => {
                return Err(Failure::invalid(format!(
                    "{server} is an active replica: two servers accept writes, and the last one wins, so two clients can hold one \
                     lock; use a server without `active-replica`"
                )));
            }
            "slave" if CLOCK.now().after(PROMOTION_PAUSE) < until => {
                // A name may lead to another server by then.
                connection.forget(id);
                sleep(PROMOTION_PAUSE).await;
            }
            "slave" => {
                let primary = format!("{}:{}", field("master_host"), field("master_port"));
                return Err(Failure::not_now(format!(
                    "{server} is a replica of {primary}: connect to the primary, or to sentinels by `redis+sentinel://`"
                )));
            }
            _ => return Ok(()),
        }
    }
}
