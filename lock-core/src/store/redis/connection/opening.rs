//! From an address to a connection that is ready for use: log in, select the database, and set up where grants arrive.

use std::{sync::Arc, time::Duration};

use crate::{
    options::RESERVED,
    runtime::executor::spawn_beside,
    store::{
        Failure,
        in_flight::ConnectionId,
        redis::{
            address::Address,
            connection::{
                CLOCK, Connection, Messages,
                capabilities::{self, Capabilities},
                errors,
                handshake::{
                    Greeting, Handshake, Purpose, authenticate, expect_a_primary, expect_okay,
                    greet_in_resp3,
                },
                reconnecting::ReconnectingConnection,
                sentinel::KnownPrimary,
                wire::{
                    resp::{Arg, Value},
                    socket,
                },
            },
        },
    },
};

/// A connection that is ready for use.
#[derive(Clone, Debug)]
pub(crate) struct CurrentConnection {
    pub(crate) connection: Arc<Connection>,
    /// The commands by which locks are kept; nothing if none are.
    pub(crate) capabilities: Option<Capabilities>,
    /// Whether grants arrive, on it or on the connection beside it.
    pub(crate) grants: bool,
    /// The connection for messages, if they need one of their own. The two end together.
    pub(crate) beside: Option<Arc<Connection>>,
    /// The sentinels' reply by which the server was found.
    pub(crate) found: Option<KnownPrimary>,
    /// In RESP3.
    pub(crate) greeting: Option<Greeting>,
}

impl CurrentConnection {
    /// A connection on which no locks are kept, and no grants arrive.
    fn new(handshake: Handshake, found: Option<KnownPrimary>, greeting: Option<Greeting>) -> Self {
        Self {
            connection: handshake.finish(),
            capabilities: None,
            grants: false,
            beside: None,
            found,
            greeting,
        }
    }

    pub(super) fn is(&self, id: ConnectionId) -> bool {
        let mut both = self.beside.iter().chain([&self.connection]);
        both.any(|connection| connection.id == id)
    }

    pub(super) fn has_ended(&self) -> bool {
        let mut both = self.beside.iter().chain([&self.connection]);
        both.any(|connection| connection.has_ended())
    }

    pub(super) fn retire(&self) {
        for connection in self.beside.iter().chain([&self.connection]) {
            connection.retire();
        }
    }
}

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
    if found.is_some() {
        expect_a_primary(&handshake, address).await?;
    }
    match reconnecting.purpose() {
        Purpose::OtherCommands => Ok(CurrentConnection::new(handshake, found, greeting)),
        #[cfg(feature = "cluster")]
        Purpose::Grants if greeting.is_none() => {
            let why = "does not speak RESP3, in which grants come";
            Err(Failure::Refused(errors::source(format!(
                "{} {why}",
                address.shown()
            ))))
        }
        #[cfg(feature = "cluster")]
        Purpose::Grants => {
            let current = CurrentConnection {
                grants: true,
                ..CurrentConnection::new(handshake, found, greeting)
            };
            watch_over(reconnecting, &current.connection);
            Ok(current)
        }
        Purpose::LocksOnly | Purpose::Locks => {
            let pushes = greeting.is_some();
            let heard = match reconnecting.purpose() {
                Purpose::Locks => hear(reconnecting, address, &mut handshake, pushes).await,
                _ => Err(NoGrants::HeardElsewhere),
            };
            let ready = make_ready(reconnecting, address, &handshake, heard).await?;
            Ok(CurrentConnection {
                capabilities: Some(ready.capabilities),
                grants: ready.grants,
                beside: ready.beside,
                ..CurrentConnection::new(handshake, found, greeting)
            })
        }
    }
}

/// What is known of a connection for locks before it is used.
struct Ready {
    capabilities: Capabilities,
    grants: bool,
    beside: Option<Arc<Connection>>,
}

/// Finds out by which commands locks are kept. `heard`: whether grants arrive, and on which connection beside this one.
async fn make_ready(
    reconnecting: &Arc<ReconnectingConnection>,
    address: &Address,
    handshake: &Handshake,
    heard: Result<Option<Handshake>, NoGrants>,
) -> Result<Ready, Failure> {
    let (grants, beside, unheard) = match heard {
        Ok(beside) => (true, beside, None),
        Err(NoGrants::ConnectionFailed(failure)) => return Err(failure),
        Err(NoGrants::SubscribeUnsupported(why)) => (false, None, Some(why)),
        Err(NoGrants::HeardElsewhere) => (false, None, None),
    };
    let channel =
        (reconnecting.purpose() == Purpose::Locks).then_some(&*reconnecting.dispatch().channel);
    let capabilities = capabilities::capabilities(handshake, address, channel).await?;
    if let (Some(why), Capabilities::Scripts) = (unheard, capabilities) {
        tracing::warn!(
            server = address.shown(),
            why,
            "this server, or this user, cannot be told when a lock is theirs: waiters ask again and again"
        );
    }
    // From here on nothing can fail or wait: both are in use, or both are closed.
    let beside = beside.map(Handshake::finish);
    if let Some(beside) = &beside {
        watch_over(reconnecting, beside);
    }
    Ok(Ready {
        capabilities,
        // Without scripts there is no queue.
        grants: grants && capabilities == Capabilities::Scripts,
        beside,
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

/// Subscribes to grants, on this connection or on one beside it, which is returned.
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
        // Some proxies close a connection that subscribes.
        let beside = open_beside(reconnecting, address).await;
        beside.map(Some).map_err(NoGrants::of_a_connection_beside)
    };
    // A connection takes four round trips at least, so a connection that opens in time gets each reply within a quarter of it.
    let patience = reconnecting.timing().connect_timeout / 4;
    if let Ok(heard) = tokio::time::timeout(patience, subscribing).await {
        return heard;
    }
    // Some proxies swallow the command. Later replies on that connection may then be assigned to the wrong request.
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

/// Nothing is requested on a connection for messages, so a half-open one would not be noticed.
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
        // Before the callers are told of the end: they may try again at once.
        if let Some(reconnecting) = reconnecting.upgrade() {
            reconnecting.forget(driven.id);
        }
        driven.end(&why);
    });
    Ok(Handshake::of(connection))
}

/// Why no grants arrive.
enum NoGrants {
    /// The connection failed, and serves nothing else either, for now.
    ConnectionFailed(Failure),
    SubscribeUnsupported(String),
    /// They come on another connection, if at all.
    HeardElsewhere,
}

impl NoGrants {
    /// Such a connection may fail on its own: then the other one serves alone.
    fn of_a_connection_beside(self) -> Self {
        match self {
            Self::ConnectionFailed(failure) => Self::SubscribeUnsupported(format!("{failure:?}")),
            never @ (Self::SubscribeUnsupported(_) | Self::HeardElsewhere) => never,
        }
    }
}

/// Confirmed before any entry can join a queue: a grant must not come before there is a subscriber to receive it.
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
