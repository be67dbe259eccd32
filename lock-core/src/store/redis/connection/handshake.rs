//! From an address to a connection that is ready for use: who we are, which database, and where grants arrive.

use std::{sync::Arc, time::Duration};

use crate::{
    options::RESERVED,
    runtime::executor::spawn_beside,
    store::{
        Failure,
        in_flight::ConnectionId,
        redis::{
            capabilities::{self, Capabilities},
            connection::{
                CLOCK, Connection, Messages, is,
                reconnecting::{CurrentConnection, Purpose, ReconnectingConnection},
                resp::{Arg, ServerError, Value},
                socket,
            },
            errors,
            topology::address::{Address, Credentials},
        },
    },
};

/// Opens a connection. Its caller bounds the time.
///
/// # Cancel safety
///
/// Dropping the future closes the connection.
pub(crate) async fn open(
    reconnecting: &Arc<ReconnectingConnection>,
) -> Result<CurrentConnection, Failure> {
    let found = match reconnecting.sentinels() {
        Some(sentinels) => Some(sentinels.primary().await?),
        None => None,
    };
    let primary = found
        .as_ref()
        .map(|found| reconnecting.address().at(&found.host, found.port));
    let address = primary.as_ref().unwrap_or(reconnecting.address());
    let (mut handshake, greeting) = log_in(reconnecting, address).await?;
    let pushes = greeting.is_some();
    if found.is_some() {
        expect_a_primary(&handshake, address).await?;
    }
    let (grants, beside, unheard) = match reconnecting.purpose() {
        Purpose::OtherCommands => {
            return Ok(CurrentConnection {
                connection: handshake.finish(),
                capabilities: None,
                grants: false,
                beside: None,
                found,
                greeting,
            });
        }
        Purpose::Grants if !pushes => {
            let why = "does not speak RESP3, in which grants come";
            return Err(Failure::Refused(errors::source(format!(
                "{} {why}",
                address.shown()
            ))));
        }
        Purpose::Grants => {
            let current = CurrentConnection {
                connection: handshake.finish(),
                capabilities: None,
                grants: true,
                beside: None,
                found,
                greeting,
            };
            watch_over(reconnecting, &current.connection);
            return Ok(current);
        }
        Purpose::LocksOnly => (false, None, None),
        Purpose::Locks => {
            let beside = hear(reconnecting, address, &mut handshake, pushes).await;
            match beside {
                Ok(beside) => (true, beside, None),
                Err(NoGrants::ConnectionFailed(failure)) => return Err(failure),
                Err(NoGrants::SubscribeUnsupported(why)) => (false, None, Some(why)),
            }
        }
    };
    let channel =
        (reconnecting.purpose() == Purpose::Locks).then_some(&*reconnecting.dispatch().channel);
    let capabilities = capabilities::capabilities(&handshake, address, channel).await?;
    if let (Some(why), Capabilities::Scripts) = (unheard, capabilities) {
        tracing::warn!(
            server = address.shown(),
            why,
            "this server, or this user, cannot be told when a lock is theirs: waiters ask again and again"
        );
    }
    // From here on nothing can fail, and nobody waits: both are in use, or both are closed.
    let beside = beside.map(Handshake::finish);
    if let Some(beside) = &beside {
        watch_over(reconnecting, beside);
    }
    Ok(CurrentConnection {
        connection: handshake.finish(),
        capabilities: Some(capabilities),
        // Without scripts there is no queue.
        grants: grants && capabilities == Capabilities::Scripts,
        beside,
        found,
        greeting,
    })
}

/// A connection of this user and this database. If there is a greeting, messages arrive on it, too.
async fn log_in(
    reconnecting: &Arc<ReconnectingConnection>,
    address: &Address,
) -> Result<(Handshake, Option<Greeting>), Failure> {
    let handshake = start(reconnecting, address, Messages::Resp3Push).await?;
    let greeting = if address.pushes {
        greet_in_resp3(&handshake, address, reconnecting.purpose()).await?
    } else {
        None
    };
    if greeting.is_none() {
        authenticate(&handshake, address).await?;
    }
    if address.database() != 0 {
        let select = [Arg::Text("SELECT"), Arg::Number(address.database().into())];
        expect_okay(&handshake, address, &select).await?;
    }
    Ok((handshake, greeting))
}

/// Has grants arrive, on the connection or on one beside it, which is returned.
async fn hear(
    reconnecting: &Arc<ReconnectingConnection>,
    address: &Address,
    handshake: &mut Handshake,
    pushes: bool,
) -> Result<Option<Handshake>, NoGrants> {
    let subscribing = async {
        if pushes {
            return subscribe(handshake, reconnecting).await.map(|()| None);
        }
        // There are proxies that hang up on whoever subscribes.
        let beside = open_beside(reconnecting, address).await;
        beside.map(Some).map_err(NoGrants::of_a_connection_beside)
    };
    // A connection takes four round trips at least, so one that is to be open in time answers each within a quarter of it.
    let patience = reconnecting.timing().connect_timeout / 4;
    if let Ok(heard) = tokio::time::timeout(patience, subscribing).await {
        return heard;
    }
    // There are proxies that swallow the command. No later answer on that connection can be trusted to be whose it seems.
    if pushes {
        (*handshake, _) = log_in(reconnecting, address)
            .await
            .map_err(NoGrants::ConnectionFailed)?;
    }
    let why = format!("no answer to SUBSCRIBE within {patience:?}");
    Err(NoGrants::SubscribeUnsupported(why))
}

/// In the second version of the protocol, messages need a connection of their own.
async fn open_beside(
    reconnecting: &Arc<ReconnectingConnection>,
    address: &Address,
) -> Result<Handshake, NoGrants> {
    let handshake = async {
        let handshake = start(reconnecting, address, Messages::Resp2Array).await?;
        authenticate(&handshake, address).await?;
        Ok(handshake)
    };
    let handshake = handshake.await.map_err(NoGrants::ConnectionFailed)?;
    subscribe(&handshake, reconnecting).await?;
    Ok(handshake)
}

/// Nobody asks anything on a connection for messages, so nobody would notice that it is half-open.
fn watch_over(reconnecting: &Arc<ReconnectingConnection>, connection: &Arc<Connection>) {
    let pause = reconnecting.timing().command_timeout;
    spawn_beside(watch(
        Arc::downgrade(reconnecting),
        connection.clone(),
        pause,
    ));
}

async fn watch(
    reconnecting: std::sync::Weak<ReconnectingConnection>,
    beside: Arc<Connection>,
    pause: Duration,
) {
    // Until the connection or the manager ends.
    while !beside.has_ended() {
        let asleep = CLOCK.now();
        tokio::time::sleep(pause).await;
        let Some(reconnecting) = reconnecting.upgrade() else {
            return;
        };
        reconnecting.suspect(&beside, asleep, pause);
    }
}

/// A connection that closes unless its opening comes to its end.
pub(crate) struct Handshake(Option<Arc<Connection>>);

impl Handshake {
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

    fn finish(mut self) -> Arc<Connection> {
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

/// Connects, and has the connection driven.
async fn start(
    reconnecting: &Arc<ReconnectingConnection>,
    address: &Address,
    messages: Messages,
) -> Result<Handshake, Failure> {
    let patience = reconnecting.timing().command_timeout;
    let (reading, writing) = socket::connect(address, patience)
        .await
        .map_err(|error| errors::unreachable(&error, address))?;
    let connection = Arc::new(Connection::new(
        ConnectionId::next(),
        writing,
        messages,
        reconnecting.is_near(),
    ));
    let (driven, dispatch, reconnecting) = (
        connection.clone(),
        reconnecting.dispatch().clone(),
        Arc::downgrade(reconnecting),
    );
    spawn_beside(async move {
        let late = || {
            if let Some(reconnecting) = reconnecting.upgrade() {
                reconnecting.suspect(&driven, CLOCK.now().before(patience), patience);
            }
        };
        let why = driven.drive(reading, dispatch, patience, late).await;
        // Before anybody hears of the end, who may want to ask again at once.
        if let Some(reconnecting) = reconnecting.upgrade() {
            reconnecting.forget(driven.id);
        }
        driven.end(&why);
    });
    Ok(Handshake(Some(connection)))
}

/// What a server says of itself in RESP3. It may leave out what it is.
#[derive(Clone, Debug)]
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

    /// What a server says that was not greeted in RESP3.
    pub(crate) async fn asked(
        reconnecting: &Arc<ReconnectingConnection>,
        within: Duration,
    ) -> Self {
        let words = [Arg::Text("INFO"), Arg::Text("server")];
        let answer = reconnecting.send(&[&words], within, None).await;
        let Ok((_, Value::BulkString(info))) = answer else {
            return Self {
                server: None,
                version: None,
            };
        };
        let field = |name: &[u8]| {
            let mut lines = info.split(|byte| *byte == b'\n');
            lines.find_map(|line| shown(line.strip_prefix(name)?))
        };
        match field(b"valkey_version:") {
            Some(version) => Self {
                server: Some("valkey".to_owned()),
                version: Some(version),
            },
            None => Self {
                server: field(b"redis_version:").map(|_| "redis".to_owned()),
                version: field(b"redis_version:"),
            },
        }
    }

    fn read(words: &[Value]) -> Self {
        let field = |wanted: &str| {
            words.chunks(2).find_map(|pair| match pair {
                [Value::BulkString(name), Value::BulkString(text)]
                    if **name == *wanted.as_bytes() =>
                {
                    shown(text)
                }
                _ => None,
            })
        };
        Self {
            server: field("server"),
            version: field("version"),
        }
    }
}

/// A name or a version as it may stand in a line of a log.
pub(crate) fn shown(text: &[u8]) -> Option<String> {
    let is_plain = |byte: &u8| byte.is_ascii_graphic();
    let text = std::str::from_utf8(text.trim_ascii()).ok()?;
    (text.len() <= 64 && text.as_bytes().iter().all(is_plain)).then(|| text.to_owned())
}

/// `None`: the server, or what may stand before it, does not speak RESP3.
async fn greet_in_resp3(
    handshake: &Handshake,
    address: &Address,
    purpose: Purpose,
) -> Result<Option<Greeting>, Failure> {
    let mut words = vec![Arg::Text("HELLO"), Arg::Text("3")];
    if let Some(Credentials { user, password }) = address.credentials() {
        let user = user.as_deref().unwrap_or("default");
        words.extend([Arg::Text("AUTH"), Arg::Text(user), Arg::Text(password)]);
    }
    match handshake.ask(address, &words).await? {
        Value::Array(words) if purpose == Purpose::Locks && is_of_a_cluster(&words) => {
            Err(errors::of_a_cluster(address))
        }
        Value::Array(words) => Ok(Some(Greeting::read(&words))),
        Value::ServerError(error) if knows_no_resp3(&error) => Ok(None),
        Value::ServerError(error) => Err(errors::refused(&error, address)),
        _ => Err(errors::no_redis(address.shown())),
    }
}

/// It has only some of the keys then, and not those that belong together.
fn is_of_a_cluster(greeting: &[Value]) -> bool {
    let is = |value: &Value, text: &str| matches!(value, Value::BulkString(bytes) if **bytes == *text.as_bytes());
    greeting
        .chunks(2)
        .any(|pair| matches!(pair, [name, mode] if is(name, "mode") && is(mode, "cluster")))
}

/// Sentinels may be behind: the one that they name may have been demoted, or not yet promoted.
async fn expect_a_primary(handshake: &Handshake, address: &Address) -> Result<(), Failure> {
    match handshake.ask(address, &[Arg::Text("ROLE")]).await? {
        Value::Array(words) if !is(&words, b"master") => Err(Failure::not_now(format!(
            "{} is a replica: the sentinels do not know the new primary yet",
            address.shown()
        ))),
        // Who may not ask hears of it from the first command that writes.
        _ => Ok(()),
    }
}

fn knows_no_resp3(error: &ServerError) -> bool {
    let details = error.details();
    error.code() == "NOPROTO"
        || details.contains("unknown command")
        || details.contains("protocol version")
}

async fn authenticate(handshake: &Handshake, address: &Address) -> Result<(), Failure> {
    let Some(Credentials { user, password }) = address.credentials() else {
        return Ok(());
    };
    let mut words = vec![Arg::Text("AUTH")];
    words.extend(user.as_deref().map(Arg::Text));
    words.push(Arg::Text(password));
    expect_okay(handshake, address, &words).await
}

async fn expect_okay(
    handshake: &Handshake,
    address: &Address,
    words: &[Arg<'_>],
) -> Result<(), Failure> {
    match handshake.ask(address, words).await? {
        Value::SimpleString(okay) if okay == "OK" => Ok(()),
        Value::ServerError(error) => Err(errors::refused(&error, address)),
        _ => Err(errors::no_redis(address.shown())),
    }
}

/// Why no grants arrive.
enum NoGrants {
    /// Nor does anything else, for now.
    ConnectionFailed(Failure),
    SubscribeUnsupported(String),
}

impl NoGrants {
    /// Such a connection may fail for itself: then the other one serves alone.
    fn of_a_connection_beside(self) -> Self {
        match self {
            Self::ConnectionFailed(failure) => Self::SubscribeUnsupported(format!("{failure:?}")),
            never @ Self::SubscribeUnsupported(_) => never,
        }
    }
}

/// Confirmed before anybody can stand in a queue: a grant must not come before there is somebody to hear it.
async fn subscribe(
    handshake: &Handshake,
    reconnecting: &ReconnectingConnection,
) -> Result<(), NoGrants> {
    let (address, channel) = (reconnecting.address(), &*reconnecting.dispatch().channel);
    let words = [Arg::Text("SUBSCRIBE"), Arg::Text(channel)];
    let answer = handshake.ask(address, &words).await;
    Err(match answer.map_err(NoGrants::ConnectionFailed)? {
        Value::Array(_) => return Ok(()),
        Value::ServerError(error) => match errors::refused(&error, address) {
            Failure::NotNow(source) => NoGrants::ConnectionFailed(Failure::NotNow(source)),
            _ if error.code() == "NOPERM" => NoGrants::SubscribeUnsupported(format!(
                "the user lacks `+subscribe &{RESERVED}grants:*`"
            )),
            _ => NoGrants::SubscribeUnsupported(error.code().to_owned()),
        },
        _ => NoGrants::SubscribeUnsupported("an answer of the wrong form".to_owned()),
    })
}
