//! From an address to a connection that is ready for use: log in, select the database, and set up where grants arrive.

use std::sync::Arc;
#[cfg(feature = "cluster")]
use std::time::Duration;

use redis::{
    AsyncConnectionConfig, ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo, RedisResult,
    Value, aio::MultiplexedConnection,
};
use tokio::sync::Notify;

use crate::{
    credentials::Credentials,
    options::RESERVED,
    runtime::executor::spawn_beside,
    store::{
        Failure,
        redis::{
            address::{Address, client::OwnClient},
            connection::{
                Connection, Driver,
                authentication::credentials_for,
                capabilities::Capabilities,
                errors,
                handshake::{
                    Greeting, Handshake, Purpose, authenticate, expect_a_primary, expect_okay,
                    greeting, knows_no_resp3,
                },
                permissions,
                reconnecting::ReconnectingConnection,
                sentinel::KnownPrimary,
                wire::{
                    command::Arg,
                    stream::{self, Watched},
                    traffic::{NoReply, Traffic},
                },
            },
        },
    },
};

/// How many requests may wait for the driver. Those beyond it wait for room.
const LONGEST_QUEUE: usize = 1 << 12;

/// A connection that is ready for use.
#[derive(Debug)]
pub(crate) struct CurrentConnection {
    pub(crate) connection: Arc<Connection>,
    /// The commands by which locks are kept; nothing if none are.
    pub(crate) capabilities: Option<Capabilities>,
    /// Whether grants arrive on it.
    pub(crate) grants: bool,
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
            found,
            greeting,
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
            let heard = match (reconnecting.purpose(), &greeting) {
                (Purpose::Locks, Some(_)) => hear(reconnecting, address, &mut handshake).await,
                (Purpose::Locks, None) => Err(NoGrants::SubscribeUnsupported(
                    "it does not speak RESP3, in which grants come".to_owned(),
                )),
                _ => Err(NoGrants::HeardElsewhere),
            };
            let (capabilities, grants) =
                make_ready(reconnecting, address, &handshake, heard).await?;
            Ok(CurrentConnection {
                capabilities: Some(capabilities),
                grants,
                ..CurrentConnection::new(handshake, found, greeting)
            })
        }
    }
}

/// Finds out by which commands locks are kept, and whether grants arrive.
async fn make_ready(
    reconnecting: &Arc<ReconnectingConnection>,
    address: &Address,
    handshake: &Handshake,
    heard: Result<(), NoGrants>,
) -> Result<(Capabilities, bool), Failure> {
    if let Err(NoGrants::ConnectionFailed(failure)) = heard {
        return Err(failure);
    }
    let channel =
        (reconnecting.purpose() == Purpose::Locks).then_some(&*reconnecting.dispatch().channel);
    let capabilities = permissions::capabilities(handshake, address, channel).await?;
    if let (Err(NoGrants::SubscribeUnsupported(why)), Capabilities::Scripts) =
        (&heard, capabilities)
    {
        tracing::warn!(
            server = address.shown(),
            why,
            "this server, or this user, cannot be told when a lock is theirs: waiters ask again and again"
        );
    }
    // Without scripts there is no queue.
    Ok((
        capabilities,
        heard.is_ok() && capabilities == Capabilities::Scripts,
    ))
}

/// A connection of this user and this database. If there is a greeting, messages arrive on it, too.
async fn log_in(
    reconnecting: &Arc<ReconnectingConnection>,
    address: &Address,
) -> Result<(Handshake, Option<Greeting>), Failure> {
    let credentials = credentials_for(address).await?;
    let credentials = credentials.as_ref();
    let pushing = if address.pushes {
        start(reconnecting, address, credentials, ProtocolVersion::RESP3).await?
    } else {
        None
    };
    let (handshake, greeting) = if let Some(handshake) = pushing {
        let greeting = greeting(&handshake, address, reconnecting.purpose()).await?;
        (handshake, Some(greeting))
    } else {
        let handshake = start(reconnecting, address, credentials, ProtocolVersion::RESP2).await?;
        let handshake = handshake.ok_or_else(|| errors::no_redis(address.shown()))?;
        // A client of the user's has done it.
        if let (Some(credentials), None) = (credentials, address.client()) {
            authenticate(&handshake, address, credentials).await?;
        }
        (handshake, None)
    };
    if let Some(credentials) = credentials {
        let within = reconnecting.timing().connect_timeout;
        handshake.keep_authenticated(address, credentials, within);
    }
    if address.database() != 0 && address.client().is_none() {
        let select = [Arg::Text("SELECT"), Arg::Number(address.database().into())];
        expect_okay(&handshake, address, &select).await?;
    }
    Ok((handshake, greeting))
}

/// Subscribes to grants.
async fn hear(
    reconnecting: &Arc<ReconnectingConnection>,
    address: &Address,
    handshake: &mut Handshake,
) -> Result<(), NoGrants> {
    // A connection takes four round trips at least, so a connection that opens in time gets each reply within a quarter of it.
    let patience = reconnecting.timing().connect_timeout / 4;
    let subscribing = subscribe(handshake, reconnecting);
    if let Ok(heard) = tokio::time::timeout(patience, subscribing).await {
        return heard;
    }
    // Some proxies swallow the command. Later replies on that connection may then be assigned to the wrong request.
    (*handshake, _) = log_in(reconnecting, address)
        .await
        .map_err(NoGrants::ConnectionFailed)?;
    let why = format!("no answer to SUBSCRIBE within {patience:?}");
    Err(NoGrants::SubscribeUnsupported(why))
}

/// Nothing is requested on a connection for grants alone, so a half-open one would not be noticed.
#[cfg(feature = "cluster")]
fn watch_over(reconnecting: &Arc<ReconnectingConnection>, connection: &Arc<Connection>) {
    let pause = reconnecting.timing().command_timeout;
    spawn_beside(watch(
        Arc::downgrade(reconnecting),
        connection.clone(),
        pause,
    ));
}

#[cfg(feature = "cluster")]
async fn watch(
    reconnecting: std::sync::Weak<ReconnectingConnection>,
    connection: Arc<Connection>,
    pause: Duration,
) {
    // Until the connection or the manager ends.
    while !connection.has_ended() {
        tokio::time::sleep(pause).await;
        let Some(reconnecting) = reconnecting.upgrade() else {
            return;
        };
        reconnecting.suspect(&connection, pause);
    }
}

/// Connects, greets the server, and has the connection driven. `None`: the server does not speak this version of the protocol.
async fn start(
    reconnecting: &Arc<ReconnectingConnection>,
    address: &Address,
    credentials: Option<&Credentials>,
    protocol: ProtocolVersion,
) -> Result<Option<Handshake>, Failure> {
    let (traffic, gone) = (Arc::new(Traffic::new()), Arc::new(Notify::new()));
    let given = address.client().map(OwnClient::config);
    let mut config = given
        .unwrap_or_default()
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_pipeline_buffer_size(LONGEST_QUEUE);
    // In the second version of the protocol there are no messages.
    if protocol == ProtocolVersion::RESP3 {
        let (dispatch, traffic) = (reconnecting.dispatch().clone(), traffic.clone());
        let gone = gone.clone();
        config = config.set_push_sender(move |message: PushInfo| {
            traffic.note_complete();
            if message.kind == PushKind::Disconnection {
                gone.notify_one();
            }
            dispatch.take(&message);
            Ok::<(), ()>(())
        });
    }
    let made = if let Some(client) = address.client() {
        let database = address.database();
        let opened = client.open(credentials, database, protocol, &config).await;
        // Its driver runs already. In the second version of the protocol, its end is noticed by the next request.
        let driver: Driver = Box::pin(async move { gone.notified().await });
        opened.map(|handle| (handle, driver))
    } else {
        let patience = reconnecting.timing().command_timeout;
        let stream = stream::connect(address, patience)
            .await
            .map_err(|error| errors::unreachable(&error, address))?;
        let stream = Watched::new(stream, traffic.clone());
        greet(stream, credentials, protocol, config).await
    };
    match made {
        Ok((handle, driver)) => Ok(Some(drive(reconnecting, handle, driver, traffic))),
        Err(error) if knows_no_resp3(&error) => Ok(None),
        Err(error) => {
            let broken = || NoReply::Broken(error.to_string().into());
            let none = traffic.ended().unwrap_or_else(broken);
            Err(errors::ungreeted(&error, &none, address))
        }
    }
}

/// In the second version of the protocol, nothing is sent for it.
async fn greet(
    stream: Watched,
    credentials: Option<&Credentials>,
    protocol: ProtocolVersion,
    config: AsyncConnectionConfig,
) -> RedisResult<(MultiplexedConnection, Driver)> {
    let mut info = RedisConnectionInfo::default()
        .set_protocol(protocol)
        .set_skip_set_lib_name();
    if let (Some(Credentials { user, password, .. }), ProtocolVersion::RESP3) =
        (credentials, protocol)
    {
        info = info.set_password(password);
        if let Some(user) = user {
            info = info.set_username(user);
        }
    }
    let (handle, driver) = MultiplexedConnection::new_with_config(&info, stream, config).await?;
    // Boxed, since its type is tied to that of `info`.
    Ok((handle, Box::pin(driver)))
}

fn drive(
    reconnecting: &Arc<ReconnectingConnection>,
    handle: MultiplexedConnection,
    driver: Driver,
    traffic: Arc<Traffic>,
) -> Handshake {
    let connection = Arc::new(Connection::new(handle, traffic));
    let patience = reconnecting.timing().command_timeout;
    let (own, reconnecting) = (connection.clone(), Arc::downgrade(reconnecting));
    spawn_beside(async move {
        let silent = || {
            if let Some(reconnecting) = reconnecting.upgrade() {
                reconnecting.suspect(&own, patience);
            }
        };
        let left = || {
            if let Some(reconnecting) = reconnecting.upgrade() {
                reconnecting.note_left(&own);
            }
        };
        own.drive(driver, patience, silent, left).await;
    });
    Handshake::of(connection)
}

/// Why no grants arrive.
enum NoGrants {
    /// The connection failed, and serves nothing else either, for now.
    ConnectionFailed(Failure),
    SubscribeUnsupported(String),
    /// They come on another connection, if at all.
    HeardElsewhere,
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
        Value::Push { .. } => return Ok(()),
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
