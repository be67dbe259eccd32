//! The first commands on a connection: the credentials of this process, and what the server reports about itself.

use std::{sync::Arc, time::Duration};

use redis::{RedisError, Value};

use crate::{
    credentials::Credentials,
    store::{
        Failure,
        redis::{
            address::Address,
            connection::{
                Connection,
                authentication::{auth, keep_authenticated},
                errors,
                wire::{command::Arg, reply},
            },
        },
    },
};

/// A connection that closes unless its handshake is completed.
pub(crate) struct Handshake(Option<Arc<Connection>>);

impl Handshake {
    pub(super) fn of(connection: Arc<Connection>) -> Self {
        Self(Some(connection))
    }

    pub(crate) async fn ask(&self, address: &Address, words: &[Arg<'_>]) -> Result<Value, Failure> {
        let answers = self.ask_all(address, &[words]).await?;
        let answer = answers.into_iter().next();
        answer.ok_or_else(|| errors::no_redis(address.shown()))
    }

    /// The same for several commands in one message.
    pub(crate) async fn ask_all(
        &self,
        address: &Address,
        commands: &[&[Arg<'_>]],
    ) -> Result<Vec<Value>, Failure> {
        let Some(connection) = &self.0 else {
            return Err(Failure::no_answer("the connection is open already"));
        };
        let answers = connection.ask_all(commands).await;
        answers.map_err(|none| errors::handshake(&none, address))
    }

    /// See [`keep_authenticated`].
    pub(super) fn keep_authenticated(
        &self,
        address: &Address,
        credentials: &Credentials,
        within: Duration,
    ) {
        if let Some(connection) = &self.0 {
            keep_authenticated(connection, address, credentials, within);
        }
    }

    pub(super) fn finish(mut self) -> Arc<Connection> {
        self.0.take().expect("only this takes it, once")
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            connection.retire();
        }
    }
}

/// What the connections to a server are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Locks of a server that has all keys. Grants arrive here, too.
    Locks,
    /// Locks, with grants arriving on another connection.
    LocksOnly,
    /// Grants, and nothing else.
    #[cfg(feature = "cluster")]
    Grants,
    /// Other commands.
    OtherCommands,
}

/// What a server reports about itself in RESP3. The name may be missing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Greeting {
    /// As in `redis`.
    pub(crate) server: Option<String>,
    /// As in `7.0.15`.
    pub(crate) version: Option<String>,
}

impl Greeting {
    /// Whether it is known to be of an earlier major version of Redis.
    pub(crate) fn is_before(&self, major: u32) -> bool {
        let version = self.version.as_deref().unwrap_or_default();
        let first = version.split('.').next().unwrap_or_default().parse();
        first.is_ok_and(|first: u32| first < major)
    }

    /// What `INFO` reports about a server that was not greeted in RESP3.
    pub(crate) fn of_info(info: &str) -> Self {
        let field = |name| shown(reply::info_field(info, name)?.as_bytes());
        let (valkey, redis) = (field("valkey_version"), field("redis_version"));
        let server = match (&valkey, &redis) {
            (Some(_), _) => Some("valkey".to_owned()),
            (None, Some(_)) => Some("redis".to_owned()),
            (None, None) => None,
        };
        Self {
            server,
            version: valkey.or(redis),
        }
    }

    fn read(reply: &Value) -> Self {
        let field = |wanted: &str| shown(reply::bytes(reply::field(reply, wanted)?)?);
        Self {
            server: field("server"),
            version: field("version"),
        }
    }
}

/// A name or a version as it may stand in a line of a log.
fn shown(text: &[u8]) -> Option<String> {
    let is_plain = |byte: &u8| byte.is_ascii_graphic();
    let text = std::str::from_utf8(text.trim_ascii()).ok()?;
    (text.len() <= 64 && text.as_bytes().iter().all(is_plain)).then(|| text.to_owned())
}

/// What the server reports about itself: asked again, since the crate `redis` keeps the reply to its own `HELLO`.
pub(super) async fn greeting(
    handshake: &Handshake,
    address: &Address,
    purpose: Purpose,
) -> Result<Greeting, Failure> {
    let reply = handshake.ask(address, &[Arg::Text("HELLO")]).await?;
    let mode = reply::field(&reply, "mode").and_then(reply::bytes);
    // Such a server has only some of the keys, and companion keys may be on different nodes.
    if purpose == Purpose::Locks && mode == Some(b"cluster") {
        return Err(errors::of_a_cluster(address));
    }
    Ok(Greeting::read(&reply))
}

/// Sentinels may be behind: the server that they name may have been demoted, or not yet promoted.
pub(super) async fn expect_a_primary(
    handshake: &Handshake,
    address: &Address,
) -> Result<(), Failure> {
    match handshake.ask(address, &[Arg::Text("ROLE")]).await? {
        Value::Array(words) if words.first().and_then(reply::bytes) != Some(b"master") => {
            Err(Failure::not_now(format!(
                "{} is a replica: the sentinels do not know the new primary yet",
                address.shown()
            )))
        }
        // If ROLE is forbidden, the first command that writes reports READONLY.
        _ => Ok(()),
    }
}

/// Whether the server, or a proxy before it, does not speak the third version of the protocol.
pub(super) fn knows_no_resp3(error: &RedisError) -> bool {
    let details = error.detail().unwrap_or_default();
    error.kind() == redis::ErrorKind::RESP3NotSupported
        || error.code() == Some("NOPROTO")
        || details.contains("unknown command")
        || details.contains("protocol version")
}

pub(super) async fn authenticate(
    handshake: &Handshake,
    address: &Address,
    credentials: &Credentials,
) -> Result<(), Failure> {
    expect_okay(handshake, address, &auth(credentials)).await
}

pub(super) async fn expect_okay(
    handshake: &Handshake,
    address: &Address,
    words: &[Arg<'_>],
) -> Result<(), Failure> {
    match handshake.ask(address, words).await? {
        Value::Okay => Ok(()),
        Value::ServerError(error) => Err(errors::refused(&error, address)),
        _ => Err(errors::no_redis(address.shown())),
    }
}
