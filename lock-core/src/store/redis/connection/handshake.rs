//! From an address to a connection that is ready for use: who we are, which database, and where grants arrive.

use std::{sync::Arc, time::Duration};

use crate::{
    options::RESERVED,
    runtime::executor::spawn_beside,
    store::{
        Failure,
        in_flight::ConnectionId,
        redis::{
            capabilities::{self, Ways},
            connection::{
                CLOCK, Connection, Messages, is,
                reconnecting::{Current, Link, Purpose},
                resp::{ServerError, Value, Word},
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
pub(crate) async fn open(link: &Arc<Link>) -> Result<Current, Failure> {
    let found = match link.sentinels() {
        Some(sentinels) => Some(sentinels.primary().await?),
        None => None,
    };
    let primary = found
        .as_ref()
        .map(|found| link.address().at(&found.host, found.port));
    let address = primary.as_ref().unwrap_or(link.address());
    let (mut opening, greeting) = log_in(link, address).await?;
    let pushes = greeting.is_some();
    if found.is_some() {
        expect_a_primary(&opening, address).await?;
    }
    let (grants, beside, unheard) = match link.purpose() {
        Purpose::Questions => {
            return Ok(Current {
                connection: opening.finish(),
                ways: None,
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
            let current = Current {
                connection: opening.finish(),
                ways: None,
                grants: true,
                beside: None,
                found,
                greeting,
            };
            watch_over(link, &current.connection);
            return Ok(current);
        }
        Purpose::LocksOnly => (false, None, None),
        Purpose::Locks => {
            let beside = hear(link, address, &mut opening, pushes).await;
            match beside {
                Ok(beside) => (true, beside, None),
                Err(Unheard::NotNow(failure)) => return Err(failure),
                Err(Unheard::Never(why)) => (false, None, Some(why)),
            }
        }
    };
    let channel = (link.purpose() == Purpose::Locks).then_some(&*link.mailbox().channel);
    let ways = capabilities::ways(&opening, address, channel).await?;
    if let (Some(why), Ways::Scripts) = (unheard, ways) {
        tracing::warn!(
            server = address.shown(),
            why,
            "this server, or this user, cannot be told when a lock is theirs: waiters ask again and again"
        );
    }
    // From here on nothing can fail, and nobody waits: both are in use, or both are closed.
    let beside = beside.map(Opening::finish);
    if let Some(beside) = &beside {
        watch_over(link, beside);
    }
    Ok(Current {
        connection: opening.finish(),
        ways: Some(ways),
        // Without scripts there is no queue.
        grants: grants && ways == Ways::Scripts,
        beside,
        found,
        greeting,
    })
}

/// A connection of this user and this database. If there is a greeting, messages arrive on it, too.
async fn log_in(
    link: &Arc<Link>,
    address: &Address,
) -> Result<(Opening, Option<Greeting>), Failure> {
    let opening = start(link, address, Messages::ByForm).await?;
    let greeting = if address.pushes {
        greet_in_resp3(&opening, address, link.purpose()).await?
    } else {
        None
    };
    if greeting.is_none() {
        authenticate(&opening, address).await?;
    }
    if address.database() != 0 {
        let select = [
            Word::Text("SELECT"),
            Word::Number(address.database().into()),
        ];
        expect_okay(&opening, address, &select).await?;
    }
    Ok((opening, greeting))
}

/// Has grants arrive, on the connection or on one beside it, which is returned.
async fn hear(
    link: &Arc<Link>,
    address: &Address,
    opening: &mut Opening,
    pushes: bool,
) -> Result<Option<Opening>, Unheard> {
    let subscribing = async {
        if pushes {
            return subscribe(opening, link).await.map(|()| None);
        }
        // There are proxies that hang up on whoever subscribes.
        let beside = open_beside(link, address).await;
        beside.map(Some).map_err(Unheard::of_a_connection_beside)
    };
    // A connection takes four round trips at least, so one that is to be open in time answers each within a quarter of it.
    let patience = link.timing().connect_timeout / 4;
    if let Ok(heard) = tokio::time::timeout(patience, subscribing).await {
        return heard;
    }
    // There are proxies that swallow the command. No later answer on that connection can be trusted to be whose it seems.
    if pushes {
        (*opening, _) = log_in(link, address).await.map_err(Unheard::NotNow)?;
    }
    let why = format!("no answer to SUBSCRIBE within {patience:?}");
    Err(Unheard::Never(why))
}

/// In the second version of the protocol, messages need a connection of their own.
async fn open_beside(link: &Arc<Link>, address: &Address) -> Result<Opening, Unheard> {
    let opening = async {
        let opening = start(link, address, Messages::ByWord).await?;
        authenticate(&opening, address).await?;
        Ok(opening)
    };
    let opening = opening.await.map_err(Unheard::NotNow)?;
    subscribe(&opening, link).await?;
    Ok(opening)
}

/// Nobody asks anything on a connection for messages, so nobody would notice that it is half-open.
fn watch_over(link: &Arc<Link>, connection: &Arc<Connection>) {
    let pause = link.timing().command_timeout;
    spawn_beside(watch(Arc::downgrade(link), connection.clone(), pause));
}

async fn watch(link: std::sync::Weak<Link>, beside: Arc<Connection>, pause: Duration) {
    // Until the connection or the manager ends.
    while !beside.has_ended() {
        let asleep = CLOCK.now();
        tokio::time::sleep(pause).await;
        let Some(link) = link.upgrade() else { return };
        link.suspect(&beside, asleep, pause);
    }
}

/// A connection that closes unless its opening comes to its end.
pub(crate) struct Opening(Option<Arc<Connection>>);

impl Opening {
    pub(crate) async fn ask(
        &self,
        address: &Address,
        words: &[Word<'_>],
    ) -> Result<Value, Failure> {
        let answers = self.ask_all(address, &[words]).await?;
        let answer = answers.into_iter().next();
        answer.ok_or_else(|| errors::no_redis(address.shown()))
    }

    /// The same for several commands in one message.
    pub(crate) async fn ask_all(
        &self,
        address: &Address,
        commands: &[&[Word<'_>]],
    ) -> Result<Vec<Value>, Failure> {
        let Some(connection) = &self.0 else {
            return Err(Failure::no_answer("the connection is open already"));
        };
        let answers = connection.ask_all(commands).await;
        answers.map_err(|none| errors::opening(&none, address))
    }

    fn finish(mut self) -> Arc<Connection> {
        self.0.take().expect("only this takes it, once")
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            connection.retire();
        }
    }
}

/// Connects, and has the connection driven.
async fn start(
    link: &Arc<Link>,
    address: &Address,
    messages: Messages,
) -> Result<Opening, Failure> {
    let patience = link.timing().command_timeout;
    let (reading, writing) = socket::connect(address, patience)
        .await
        .map_err(|error| errors::unreachable(&error, address))?;
    let connection = Arc::new(Connection::new(
        ConnectionId::next(),
        writing,
        messages,
        link.is_near(),
    ));
    let (driven, mailbox, link) = (
        connection.clone(),
        link.mailbox().clone(),
        Arc::downgrade(link),
    );
    spawn_beside(async move {
        let late = || {
            if let Some(link) = link.upgrade() {
                link.suspect(&driven, CLOCK.now().before(patience), patience);
            }
        };
        let why = driven.drive(reading, mailbox, patience, late).await;
        // Before anybody hears of the end, who may want to ask again at once.
        if let Some(link) = link.upgrade() {
            link.forget(driven.id);
        }
        driven.end(&why);
    });
    Ok(Opening(Some(connection)))
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
    pub(crate) async fn asked(link: &Arc<Link>, within: Duration) -> Self {
        let words = [Word::Text("INFO"), Word::Text("server")];
        let answer = link.send(&[&words], within, None).await;
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
    opening: &Opening,
    address: &Address,
    purpose: Purpose,
) -> Result<Option<Greeting>, Failure> {
    let mut words = vec![Word::Text("HELLO"), Word::Text("3")];
    if let Some(Credentials { user, password }) = address.credentials() {
        let user = user.as_deref().unwrap_or("default");
        words.extend([Word::Text("AUTH"), Word::Text(user), Word::Text(password)]);
    }
    match opening.ask(address, &words).await? {
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
async fn expect_a_primary(opening: &Opening, address: &Address) -> Result<(), Failure> {
    match opening.ask(address, &[Word::Text("ROLE")]).await? {
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

async fn authenticate(opening: &Opening, address: &Address) -> Result<(), Failure> {
    let Some(Credentials { user, password }) = address.credentials() else {
        return Ok(());
    };
    let mut words = vec![Word::Text("AUTH")];
    words.extend(user.as_deref().map(Word::Text));
    words.push(Word::Text(password));
    expect_okay(opening, address, &words).await
}

async fn expect_okay(
    opening: &Opening,
    address: &Address,
    words: &[Word<'_>],
) -> Result<(), Failure> {
    match opening.ask(address, words).await? {
        Value::SimpleString(okay) if okay == "OK" => Ok(()),
        Value::ServerError(error) => Err(errors::refused(&error, address)),
        _ => Err(errors::no_redis(address.shown())),
    }
}

/// Why no grants arrive.
enum Unheard {
    /// Nor does anything else, for now.
    NotNow(Failure),
    Never(String),
}

impl Unheard {
    /// Such a connection may fail for itself: then the other one serves alone.
    fn of_a_connection_beside(self) -> Self {
        match self {
            Self::NotNow(failure) => Self::Never(format!("{failure:?}")),
            never @ Self::Never(_) => never,
        }
    }
}

/// Confirmed before anybody can stand in a queue: a grant must not come before there is somebody to hear it.
async fn subscribe(opening: &Opening, link: &Link) -> Result<(), Unheard> {
    let (address, channel) = (link.address(), &*link.mailbox().channel);
    let words = [Word::Text("SUBSCRIBE"), Word::Text(channel)];
    let answer = opening.ask(address, &words).await;
    Err(match answer.map_err(Unheard::NotNow)? {
        Value::Array(_) => return Ok(()),
        Value::ServerError(error) => match errors::refused(&error, address) {
            Failure::NotNow(source) => Unheard::NotNow(Failure::NotNow(source)),
            _ if error.code() == "NOPERM" => {
                Unheard::Never(format!("the user lacks `+subscribe &{RESERVED}grants:*`"))
            }
            _ => Unheard::Never(error.code().to_owned()),
        },
        _ => Unheard::Never("an answer of the wrong form".to_owned()),
    })
}
