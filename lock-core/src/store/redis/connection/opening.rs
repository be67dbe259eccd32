//! From an address to a connection that is ready for use: log in, select the database, and subscribe to grants.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use redis::{
    AsyncConnectionConfig, ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo, RedisResult,
    Value, aio::MultiplexedConnection,
};
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};

use crate::{
    credentials::Credentials,
    options::RESERVED,
    runtime::executor::spawn_beside,
    store::{
        Failure,
        redis::{
            address::{Address, client::authenticated},
            connection::{
                CLOCK, Connection,
                authentication::{auth, credentials_for, due, keep_authenticated},
                capabilities::Capabilities,
                connection_settings::ConnectionSettings,
                errors,
                handshake::{CurrentConnection, Purpose, knows_no_resp3},
                shared_driver::SharedDriver,
                wire::{
                    command::Arg,
                    driver::Driver,
                    stream::{self, Watched},
                    traffic::Traffic,
                },
            },
        },
    },
};

/// How many requests may wait for the driver. Further requests wait for room.
const LONGEST_QUEUE: usize = 1 << 12;

/// The pauses before a provider is asked again for credentials, where the server refused those that it returned.
const ASK_AGAIN: [Duration; 3] = [
    Duration::from_millis(50),
    Duration::from_millis(150),
    Duration::from_millis(450),
];

const NO_RESP3: &str = "does not speak RESP3, in which grants come";

/// What a connection reports while it is in use.
pub(super) trait ConnectionListener: Send + Sync {
    /// Nothing has come for too long, or a reply was late.
    fn silent(self: Arc<Self>, connection: &Arc<Connection>);

    /// Nothing more is sent on the connection. Called once.
    fn left(self: Arc<Self>, connection: &Arc<Connection>);
}

type Listener = Weak<dyn ConnectionListener>;

/// Opens a connection: to the primary that sentinels name, or to the server of the address. Its caller bounds the time.
///
/// # Cancel safety
///
/// Dropping the future closes the connection.
pub(super) async fn open(
    settings: &ConnectionSettings,
    primary: Option<Address>,
    listener: Listener,
) -> Result<CurrentConnection, Failure> {
    let address = primary.as_ref().unwrap_or(&settings.address);
    let mut current = log_in(settings, address, &listener).await?;
    if primary.is_some() {
        current.expect_a_primary().await?;
    }
    match settings.purpose {
        Purpose::OtherCommands => {}
        Purpose::Grants if current.greeting.is_none() => {
            let why = format!("{} {NO_RESP3}", address.shown());
            return Err(Failure::refused(why));
        }
        Purpose::Grants => current.grants = true,
        Purpose::LocksOnly | Purpose::Requests => {
            current.capabilities = Some(ask_capabilities(&current).await?);
        }
        Purpose::Locks => {
            let subscribed = listen(settings, &mut current, &listener).await?;
            let known = ask_capabilities(&current).await?;
            current.capabilities = Some(known);
            // Without scripts there is no queue.
            current.grants = subscribed.is_ok() && known == Capabilities::Scripts;
            if let (Err(why), Capabilities::Scripts) = (subscribed, known) {
                tracing::warn!(
                    server = address.shown(),
                    why,
                    "grants cannot be received from this server, or by this user: waiters poll"
                );
            }
        }
    }
    if let Some(known) = current.capabilities {
        settings.dispatch.note_capabilities(known);
    }
    Ok(current)
}

/// Opens a connection of this user to this database. If it has a greeting, messages arrive on it, too.
///
/// If the server refuses the credentials of a provider, that is asked again a few times.
async fn log_in(
    settings: &ConnectionSettings,
    address: &Address,
    listener: &Listener,
) -> Result<CurrentConnection, Failure> {
    let started = CLOCK.now();
    // The refusal is to be reported, and not that the time for a connection is over.
    let most = settings.timing.connect_timeout / 2;
    for pause in ASK_AGAIN {
        match log_in_once(settings, address, listener).await {
            Err(failure)
                if errors::is_for_credentials(&failure)
                    && CLOCK.now().since(started) + pause <= most =>
            {
                tracing::debug!(
                    server = address.shown(),
                    ?failure,
                    "asking the credentials provider again"
                );
                sleep(pause).await;
            }
            result => return result,
        }
    }
    log_in_once(settings, address, listener).await
}

async fn log_in_once(
    settings: &ConnectionSettings,
    address: &Address,
    listener: &Listener,
) -> Result<CurrentConnection, Failure> {
    let credentials = credentials_for(address).await?;
    let credentials = credentials.as_ref();
    let pushing = if address.pushes() {
        start(
            settings,
            address,
            listener,
            credentials,
            ProtocolVersion::RESP3,
        )
        .await?
    } else {
        None
    };
    let current = if let Some(mut current) = pushing {
        current.greet(settings.purpose).await?;
        current
    } else {
        let current = start(
            settings,
            address,
            listener,
            credentials,
            ProtocolVersion::RESP2,
        )
        .await?;
        let current = current.ok_or_else(|| errors::no_redis(address.shown()))?;
        // A user's own client has logged in already.
        if let (Some(credentials), None) = (credentials, address.client()) {
            current.expect_okay(&auth(credentials)).await?;
        }
        current
    };
    if address.database() != 0 && address.client().is_none() {
        let select = [
            Arg::Text("SELECT"),
            Arg::Number(address.database().unsigned_abs()),
        ];
        current.expect_okay(&select).await?;
    }
    Ok(current)
}

async fn ask_capabilities(current: &CurrentConnection) -> Result<Capabilities, Failure> {
    let reply = current.ask(&Capabilities::QUESTION).await?;
    Capabilities::of_reply(&reply, &current.address)
}

/// Subscribes to grants. The inner error says why no grants arrive.
async fn listen(
    settings: &ConnectionSettings,
    current: &mut CurrentConnection,
    listener: &Listener,
) -> Result<Result<(), String>, Failure> {
    if current.greeting.is_none() {
        return Ok(Err(format!("it {NO_RESP3}")));
    }
    // Opening takes four round trips at least, so a connection that opens in time gets each reply within a quarter of the time-out.
    let patience = settings.timing.connect_timeout / 4;
    if let Ok(subscribed) = timeout(patience, subscribe(current, &settings.dispatch.channel)).await
    {
        return subscribed;
    }
    // Some proxies drop the command without a reply. Later replies on that connection may then be assigned to the wrong request.
    *current = log_in(settings, &current.address.clone(), listener).await?;
    Ok(Err(format!("no reply to SUBSCRIBE within {patience:?}")))
}

/// Subscribes to the channel. The subscription is confirmed before any entry can join a queue: a grant must not come before there
/// is a subscriber.
async fn subscribe(
    current: &CurrentConnection,
    channel: &str,
) -> Result<Result<(), String>, Failure> {
    let words = [Arg::Text("SUBSCRIBE"), Arg::Text(channel)];
    Ok(Err(match current.ask(&words).await? {
        Value::Push { .. } => return Ok(Ok(())),
        Value::ServerError(error) => match errors::refused(&error, &current.address) {
            failure @ Failure::NotNow(_) => return Err(failure),
            _ if error.code() == "NOPERM" => {
                format!("the user lacks `+subscribe &{RESERVED}grants:*`")
            }
            _ => error.code().to_owned(),
        },
        _ => "a reply of the wrong form".to_owned(),
    }))
}

/// Connects, greets the server, and starts the driver. `None`: the server does not speak this version of the protocol.
async fn start(
    settings: &ConnectionSettings,
    address: &Address,
    listener: &Listener,
    credentials: Option<&Credentials>,
    protocol: ProtocolVersion,
) -> Result<Option<CurrentConnection>, Failure> {
    let (traffic, gone) = (Arc::new(Traffic::new()), Arc::new(Notify::new()));
    let given = address.client().cloned();
    let mut config = given
        .unwrap_or_default()
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_pipeline_buffer_size(LONGEST_QUEUE);
    // In the second version of the protocol there are no messages.
    if protocol == ProtocolVersion::RESP3 {
        let (dispatch, traffic) = (settings.dispatch.clone(), traffic.clone());
        let gone = gone.clone();
        config = config.set_push_sender(move |message: PushInfo| {
            traffic.note_message();
            if message.kind == PushKind::Disconnection {
                gone.notify_one();
            }
            dispatch.take(&message);
            Ok::<(), ()>(())
        });
    }
    let mut registrations = None;
    let made = if address.client().is_some() {
        let opened = address.open(credentials, protocol, &config).await;
        // The client's driver runs already. In the second version of the protocol, the next request notices the end of the
        // connection.
        let driver: Driver = Box::pin(async move { gone.notified().await });
        opened.map(|handle| (handle, driver))
    } else {
        let patience = settings.timing.command_timeout;
        let is_shared = shares_driver(settings.purpose);
        let connected = stream::connect(address, patience, is_shared).await;
        let (stream, shared) = connected.map_err(|error| errors::unreachable(&error, address))?;
        registrations = shared;
        let stream = Watched::new(stream, traffic.clone());
        greet(stream, credentials, protocol, config).await
    };
    match made {
        Ok((handle, driver)) => {
            if protocol == ProtocolVersion::RESP3 {
                address.note_spoke();
            }
            let connection = Connection::new(handle, traffic.clone());
            let (connection, driver) = match registrations {
                None => (connection, driver),
                Some(socket) => {
                    let shared = SharedDriver::new(driver, socket);
                    let watch = shared.clone().watch(move || traffic.in_flight());
                    (connection.sharing(shared), Box::pin(watch) as Driver)
                }
            };
            let connection = Arc::new(connection);
            let current = CurrentConnection::new(connection, address.clone());
            drive(
                settings,
                &current,
                driver,
                listener,
                credentials.and_then(due),
            );
            Ok(Some(current))
        }
        Err(error) if knows_no_resp3(&error) => Ok(None),
        Err(error) => Err(errors::ungreeted(&error, traffic.ended(), address)),
    }
}

/// Whether requests poll the driver of such a connection themselves. Where a socket cannot be registered with two reactors, and in a
/// simulation, the manager's thread does.
fn shares_driver(purpose: Purpose) -> bool {
    #[cfg(feature = "simulation")]
    if crate::runtime::simulation::ask(|_| ()).is_some() {
        return false;
    }
    cfg!(unix) && purpose == Purpose::Requests
}

/// Greets the server. In the second version of the protocol, nothing is sent for that.
async fn greet(
    stream: Watched,
    credentials: Option<&Credentials>,
    protocol: ProtocolVersion,
    config: AsyncConnectionConfig,
) -> RedisResult<(MultiplexedConnection, Driver)> {
    let info = RedisConnectionInfo::default()
        .set_protocol(protocol)
        .set_skip_set_lib_name();
    let info = match protocol {
        ProtocolVersion::RESP2 => info,
        _ => authenticated(info, credentials),
    };
    let (handle, driver) = MultiplexedConnection::new_with_config(&info, stream, config).await?;
    // Boxed, since its type is tied to that of `info`.
    Ok((handle, Box::pin(driver)))
}

/// Spawns a task that polls the driver until the connection is over, and authenticates it anew after `due`.
fn drive(
    settings: &ConnectionSettings,
    current: &CurrentConnection,
    driver: Driver,
    listener: &Listener,
    due: Option<Duration>,
) {
    let (connection, address) = (current.connection.clone(), current.address.clone());
    let (transaction, timing) = (settings.transaction.clone(), settings.timing);
    // On a connection for grants alone, usually no request is in flight.
    if settings.purpose == Purpose::Grants {
        connection.traffic.always_notice_silence();
    }
    let listener = listener.clone();
    spawn_beside(async move {
        let silent = || {
            if let Some(listener) = listener.upgrade() {
                listener.silent(&connection);
            }
        };
        let left = || {
            if let Some(listener) = listener.upgrade() {
                listener.left(&connection);
            }
        };
        let until_its_end = connection.drive(driver, timing.command_timeout, silent, left);
        // Dropped with the driver: its pause may be a day long.
        let within = timing.connect_timeout;
        let authenticated = keep_authenticated(&connection, &address, &transaction, due, within);
        tokio::select! {
            biased;
            () = until_its_end => {}
            never = authenticated => match never {},
        }
    });
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::store::{
        redis::{
            address::{transport::Security, url::ServerUrl},
            connection::pub_sub::PubSubDispatch,
        },
        timing::Timing,
    };

    fn to(url: &str) -> ConnectionSettings {
        let url = ServerUrl::parse(url).expect("whole");
        ConnectionSettings {
            address: Address::of(&url, &Security::default()).expect("whole"),
            purpose: Purpose::OtherCommands,
            timing: Timing::default(),
            dispatch: PubSubDispatch::new("".into(), "".into(), Arc::default()),
            transaction: Arc::default(),
        }
    }

    struct NoListener;

    impl ConnectionListener for NoListener {
        fn silent(self: Arc<Self>, _: &Arc<Connection>) {}

        fn left(self: Arc<Self>, _: &Arc<Connection>) {}
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_has_ended_is_not_kept_until_its_credentials_end() {
        let (ours, theirs) = tokio::io::duplex(64);
        let traffic = Arc::new(Traffic::new());
        let stream = Watched::new(Box::new(ours), traffic.clone());
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let made = greet(stream, None, ProtocolVersion::RESP2, config).await;
        let (handle, driver) = made.expect("nothing is sent in a greeting");
        let connection = Arc::new(Connection::new(handle, traffic));
        let kept = Arc::downgrade(&connection);
        let settings = to("redis://user:password@host");
        let current = CurrentConnection::new(connection, settings.address.clone());
        let day = Duration::from_secs(24 * 60 * 60);
        let listener = Arc::downgrade(&Arc::new(NoListener));
        let listener: Listener = listener;
        drive(&settings, &current, driver, &listener, Some(day));
        drop((current, theirs));
        let started = Instant::now();
        while kept.upgrade().is_some() {
            assert!(started.elapsed() < day / 2, "it is kept");
            sleep(Duration::from_secs(1)).await;
        }
    }
}
