//! The baselines: the commands of a lock, or a PING, on a connection of the `redis` crate in the user's runtime.

use std::{sync::Arc, time::Duration};

use redis::{AsyncConnectionConfig, IntoConnectionInfo, Script, aio::MultiplexedConnection};
use uuid::Uuid;

use crate::lockers::{Locker, WAIT};

/// The minimal lock: `SET NX PX`, and a script that compares and deletes. It has no fencing, queue or renewal.
///
/// All ratios refer to it, so do not change it in a commit that changes lock-core.
#[derive(Clone)]
pub(crate) struct Raw {
    connection: MultiplexedConnection,
    script: Arc<Script>,
}

/// The default time-out of the crate costs time, too. This one is longer, so that no request fails on a busy machine.
const TIME_OUT: Option<Duration> = Some(WAIT);

const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

impl Raw {
    /// Connects with Nagle's delay, the default of redis 1.8.
    pub(crate) async fn connect(url: &str) -> Self {
        Self::on(connection(url, Sends::WithNaglesDelay, TIME_OUT).await).await
    }

    /// Connects without Nagle's delay.
    pub(crate) async fn connect_to_send_at_once(url: &str) -> Self {
        Self::on(connection(url, Sends::AtOnce, TIME_OUT).await).await
    }

    async fn on(mut connection: MultiplexedConnection) -> Self {
        let script = Script::new(COMPARE_AND_DELETE);
        let loaded = script.prepare_invoke().load_async(&mut connection).await;
        let _hash: String = loaded.expect("a running server");
        Self {
            connection,
            script: Arc::new(script),
        }
    }
}

impl Locker for Raw {
    /// The owner token.
    type Held<'a> = String;

    async fn acquire(&self, key: &str) -> String {
        let token = Uuid::new_v4().to_string();
        let set: Option<()> = redis::cmd("SET")
            .arg(key)
            .arg(&token)
            .arg("NX")
            .arg("PX")
            .arg(10_000)
            .query_async(&mut self.connection.clone())
            .await
            .expect("a running server");
        set.expect("a key of its own");
        token
    }

    async fn release(&self, key: &str, token: String) {
        let mut connection = self.connection.clone();
        let mut script = self.script.key(key);
        let deleted = script.arg(token).invoke_async(&mut connection).await;
        let deleted: u32 = deleted.expect("a running server");
        assert_eq!(deleted, 1, "a key of its own");
    }
}

/// A single PING.
#[derive(Clone)]
pub(crate) struct Ping(MultiplexedConnection);

impl Ping {
    pub(crate) async fn connect(url: &str) -> Self {
        Self(connection(url, Sends::AtOnce, None).await)
    }
}

impl Locker for Ping {
    type Held<'a> = ();

    async fn acquire(&self, _key: &str) {
        let mut connection = self.0.clone();
        let pong: Result<(), _> = redis::cmd("PING").query_async(&mut connection).await;
        pong.expect("a running server");
    }

    async fn release(&self, _key: &str, (): ()) {}
}

/// The time at which a connection sends a small write.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sends {
    AtOnce,
    /// Once the previous write is acknowledged, together with later ones.
    WithNaglesDelay,
}

/// Connects without Nagle's delay.
pub(crate) async fn connect(url: &str) -> MultiplexedConnection {
    connection(url, Sends::AtOnce, TIME_OUT).await
}

async fn connection(url: &str, sends: Sends, time_out: Option<Duration>) -> MultiplexedConnection {
    let info = url.into_connection_info().expect("a url");
    let tcp = info.tcp_settings().clone();
    let tcp = tcp.set_nodelay(sends == Sends::AtOnce);
    let client = redis::Client::open(info.set_tcp_settings(tcp)).expect("a url");
    let config = AsyncConnectionConfig::new().set_response_timeout(time_out);
    let connection = client.get_multiplexed_async_connection_with_config(&config);
    connection.await.expect("a running server")
}
