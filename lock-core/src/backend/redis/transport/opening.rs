//! From an address to a connection that is ready for use: log in, select the database, and subscribe to push messages.

use std::{sync::Arc, time::Duration};

use redis::{
    AsyncConnectionConfig, ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo, RedisResult,
    Value, aio::MultiplexedConnection,
};
use tokio::{
    sync::{Mutex, Notify},
    time::{sleep, timeout},
};

use crate::{
    backend::{
        redis::transport::{
            CLOCK, Connection,
            address::{Address, security::authenticated},
            authentication::{auth, credentials_for, due, keep_authenticated},
            capabilities::Capabilities,
            command::Arg,
            connection_events::ConnectionEvents,
            errors,
            handshake::{CurrentConnection, Purpose, knows_no_resp3},
            shared_driver::{Driver, SharedDriver},
            stream::{self, Watched},
            traffic::Traffic,
        },
        timing::Timing,
    },
    credentials::Credentials,
    failure::Failure,
    options::RESERVED,
    runtime::executor::spawn_beside,
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

/// What the connections to one server are made with.
#[derive(Debug)]
pub(crate) struct ConnectionSettings {
    /// The address of the server. With sentinels, they give the host and port, and only its other settings count.
    pub(super) address: Address,
    pub(super) purpose: Purpose,
    pub(super) timing: Timing,
    pub(super) events: Arc<dyn ConnectionEvents>,
    /// Locked during a transaction, and while the connection is authenticated anew: an AUTH in a transaction would only be queued.
    pub(super) transaction: Arc<Mutex<()>>,
}

/// What a connection reports while it is in use.
#[derive(Clone, Copy, Debug)]
pub(super) enum ConnectionEvent {
    /// Nothing has come for too long, or a reply was late.
    Silent,
    /// Nothing more is sent on the connection. Reported once.
    Left,
}

/// Takes what a connection reports.
pub(super) type Listener = Arc<dyn Fn(&Arc<Connection>, ConnectionEvent) + Send + Sync>;

/// A connection that is being made.
struct Opening<'a> {
    settings: &'a ConnectionSettings,
    address: &'a Address,
    listener: Listener,
}

/// Opens a connection: to the primary that sentinels name, or to the server of the address. Its caller bounds the time.
///
/// # Cancel safety
///
/// Dropping the future closes the connection.
pub(super) async fn open(
    settings: &ConnectionSettings,
    primary: Option<&Address>,
    listener: Listener,
) -> Result<CurrentConnection, Failure> {
    let address = primary.unwrap_or(&settings.address);
    let opening = Opening {
        settings,
        address,
        listener,
    };
    let mut current = opening.log_in().await?;
    if primary.is_some() {
        current.expect_a_primary().await?;
    }
    let mut not_subscribed = None;
    match settings.purpose {
        Purpose::Pushes if current.greeting.is_none() => {
            let why = format!("{address} {NO_RESP3}");
            return Err(Failure::refused(why));
        }
        Purpose::Pushes | Purpose::OtherCommands => return Ok(current),
        Purpose::LocksOnly | Purpose::Requests => {}
        Purpose::Locks => not_subscribed = opening.listen(&mut current).await?,
    }
    let known = current.ask_capabilities().await?;
    // Without scripts there is no queue.
    if settings.purpose == Purpose::Locks && known == Capabilities::Scripts {
        current.is_subscribed = not_subscribed.is_none();
        if let Some(why) = not_subscribed {
            settings.events.not_subscribed(address.shown(), &why);
        }
    }
    current.capabilities = Some(known);
    settings.events.opened(known);
    Ok(current)
}

impl Opening<'_> {
    /// Opens a connection of this user to this database. If it has a greeting, messages arrive on it, too.
    ///
    /// If the server refuses the credentials of a provider, that is asked again a few times.
    async fn log_in(&self) -> Result<CurrentConnection, Failure> {
        let started = CLOCK.now();
        // The refusal is to be reported, and not that the time for a connection is over.
        let most = self.settings.timing.connect_timeout / 2;
        for pause in ASK_AGAIN {
            match self.log_in_once().await {
                Err(failure)
                    if errors::is_for_credentials(&failure)
                        && CLOCK.now().since(started) + pause <= most =>
                {
                    tracing::debug!(
                        server = self.address.shown(),
                        ?failure,
                        "asking the credentials provider again"
                    );
                    sleep(pause).await;
                }
                result => return result,
            }
        }
        self.log_in_once().await
    }

    async fn log_in_once(&self) -> Result<CurrentConnection, Failure> {
        let address = self.address;
        let credentials = credentials_for(address).await?;
        let credentials = credentials.as_ref();
        let mut pushing = None;
        if address.pushes() {
            pushing = self.start(credentials, ProtocolVersion::RESP3).await?;
        }
        let current = if let Some(mut current) = pushing {
            current.greet(self.settings.purpose).await?;
            current
        } else {
            let current = self.start(credentials, ProtocolVersion::RESP2).await?;
            let current = current.ok_or_else(|| errors::no_redis(address))?;
            // A user's own client has logged in already.
            if let (Some(credentials), None) = (credentials, address.client()) {
                current.expect_okay(&auth(credentials)).await?;
            }
            current
        };
        if address.database() != 0 && address.client().is_none() {
            let database = Arg::Number(address.database().unsigned_abs());
            let select = [Arg::Text("SELECT"), database];
            current.expect_okay(&select).await?;
        }
        Ok(current)
    }

    /// Subscribes to the channel. Returns why no push messages arrive, if they do not.
    async fn listen(&self, current: &mut CurrentConnection) -> Result<Option<String>, Failure> {
        if current.greeting.is_none() {
            return Ok(Some(format!("it {NO_RESP3}")));
        }
        // Opening takes four round trips at least, so a connection that opens in time gets each reply within a quarter of the time-out.
        let patience = self.settings.timing.connect_timeout / 4;
        let subscribed = subscribe(current, self.settings.events.channel());
        if let Ok(subscribed) = timeout(patience, subscribed).await {
            return subscribed;
        }
        // Some proxies drop the command without a reply. Later replies on that connection may then be assigned to the wrong request.
        *current = self.log_in().await?;
        Ok(Some(format!("no reply to SUBSCRIBE within {patience:?}")))
    }

    /// Connects, greets the server, and starts the driver. `None`: the server does not speak this version of the protocol.
    async fn start(
        &self,
        credentials: Option<&Credentials>,
        protocol: ProtocolVersion,
    ) -> Result<Option<CurrentConnection>, Failure> {
        let address = self.address;
        let (traffic, gone) = (Arc::<Traffic>::default(), Arc::<Notify>::default());
        let config = self.config(protocol, &traffic, &gone);
        let mut registrations = None;
        let made = if address.client().is_some() {
            let opened = address.open(credentials, protocol, &config).await;
            // The client's driver runs already. In the second version of the protocol, the next request notices the end of the
            // connection.
            let driver: Driver = Box::pin(async move { gone.notified().await });
            opened.map(|handle| (handle, driver))
        } else {
            let patience = self.settings.timing.command_timeout;
            let is_shared = shares_driver(self.settings.purpose);
            let connected = stream::connect(address, patience, is_shared).await;
            let (stream, shared) =
                connected.map_err(|error| errors::unreachable(&error, address))?;
            registrations = shared;
            let stream = Watched::new(stream, traffic.clone());
            greet(stream, credentials, protocol, config).await
        };
        let (handle, mut driver) = match made {
            Ok(made) => made,
            Err(error) if knows_no_resp3(&error) => return Ok(None),
            Err(error) => return Err(errors::ungreeted(&error, traffic.ended(), address)),
        };
        if protocol == ProtocolVersion::RESP3 {
            address.note_spoke();
        }
        let mut connection = Connection::new(handle, traffic.clone());
        if let Some(socket) = registrations {
            let shared = SharedDriver::new(driver, socket, traffic);
            driver = shared.clone().watched();
            connection = connection.sharing(shared);
        }
        let current = CurrentConnection::new(Arc::new(connection), address.clone());
        self.drive(&current, driver, credentials.and_then(due));
        Ok(Some(current))
    }

    /// The settings of a connection for the crate `redis`. `gone` is notified when a connection with messages has ended.
    fn config(
        &self,
        protocol: ProtocolVersion,
        traffic: &Arc<Traffic>,
        gone: &Arc<Notify>,
    ) -> AsyncConnectionConfig {
        let given = self.address.client().cloned().unwrap_or_default();
        let config = given
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(LONGEST_QUEUE);
        // In the second version of the protocol there are no messages.
        if protocol == ProtocolVersion::RESP2 {
            return config;
        }
        let events = self.settings.events.clone();
        let (traffic, gone) = (traffic.clone(), gone.clone());
        config.set_push_sender(move |message: PushInfo| {
            traffic.note_message();
            if message.kind == PushKind::Disconnection {
                gone.notify_one();
            }
            events.pushed(&message);
            Ok::<(), ()>(())
        })
    }

    /// Spawns a task that polls the driver until the connection is over, and authenticates it anew after `due`.
    fn drive(&self, current: &CurrentConnection, driver: Driver, due: Option<Duration>) {
        let (connection, address) = (current.connection.clone(), current.address.clone());
        let (transaction, timing) = (self.settings.transaction.clone(), self.settings.timing);
        // On a connection for push messages alone, usually no request is in flight.
        if self.settings.purpose == Purpose::Pushes {
            connection.traffic.always_notice_silence();
        }
        let listener = self.listener.clone();
        spawn_beside(async move {
            let silent = || listener(&connection, ConnectionEvent::Silent);
            let left = || listener(&connection, ConnectionEvent::Left);
            let until_its_end = connection.drive(driver, timing.command_timeout, silent, left);
            // Dropped with the driver: its pause may be a day long.
            let within = timing.connect_timeout;
            let authenticated =
                keep_authenticated(&connection, &address, &transaction, due, within);
            tokio::select! {
                biased;
                () = until_its_end => {}
                never = authenticated => match never {},
            }
        });
    }
}

/// Subscribes to the channel. Returns why no push messages arrive, if they do not. The subscription is confirmed before the connection
/// is used: no message that a request causes may come before there is a subscriber.
async fn subscribe(current: &CurrentConnection, channel: &str) -> Result<Option<String>, Failure> {
    let words = [Arg::Text("SUBSCRIBE"), Arg::Text(channel)];
    Ok(Some(match current.ask(&words).await? {
        Value::Push { .. } => return Ok(None),
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
    let credentials = credentials.filter(|_| protocol == ProtocolVersion::RESP3);
    let info = authenticated(info, credentials);
    let (handle, driver) = MultiplexedConnection::new_with_config(&info, stream, config).await?;
    // Boxed, since its type is tied to that of `info`.
    Ok((handle, Box::pin(driver)))
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::backend::redis::transport::{
        address::{security::Security, url::ServerUrl},
        connection_events::RepliesOnly,
    };

    fn to(url: &str) -> ConnectionSettings {
        let url = ServerUrl::parse(url).expect("whole");
        ConnectionSettings {
            address: Address::of(&url, &Security::default()).expect("whole"),
            purpose: Purpose::OtherCommands,
            timing: Timing::default(),
            events: Arc::new(RepliesOnly),
            transaction: Arc::default(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_has_ended_is_not_kept_until_its_credentials_end() {
        let (ours, theirs) = tokio::io::duplex(64);
        let traffic = Arc::<Traffic>::default();
        let stream = Watched::new(Box::new(ours), traffic.clone());
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let made = greet(stream, None, ProtocolVersion::RESP2, config).await;
        let (handle, driver) = made.expect("nothing is sent in a greeting");
        let connection = Arc::new(Connection::new(handle, traffic));
        let kept = Arc::downgrade(&connection);
        let settings = to("redis://user:password@host");
        let current = CurrentConnection::new(connection, settings.address.clone());
        let day = Duration::from_secs(24 * 60 * 60);
        let opening = Opening {
            settings: &settings,
            address: &settings.address,
            listener: Arc::new(|_, _| ()),
        };
        opening.drive(&current, driver, Some(day));
        drop((current, theirs));
        let started = Instant::now();
        while kept.upgrade().is_some() {
            assert!(started.elapsed() < day / 2, "it is kept");
            sleep(Duration::from_secs(1)).await;
        }
    }
}
