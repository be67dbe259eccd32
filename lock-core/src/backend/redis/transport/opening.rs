//! From an address to a connection that is ready for use. `handshake.rs` says what is sent on it.

use std::{
    env,
    path::Path,
    process,
    sync::{Arc, atomic::AtomicU64},
};

use redis::{ErrorKind, ProtocolVersion, PushInfo, PushKind, RedisError};
use tokio::{sync::Mutex, time::sleep};

use crate::{
    backend::{
        redis::transport::{
            CLOCK,
            address::Address,
            authentication::{credentials_for, due, keep_authenticated},
            connection::{Connection, CurrentConnection},
            connection_events::ConnectionEvents,
            errors,
            handshake::{Found, Handshake, Purpose, Step, Terms},
            session::Session,
            stream,
            traffic::{NoReply, Traffic},
        },
        timing::Timing,
    },
    credentials::Credentials,
    failure::Failure,
    options::RESERVED,
    runtime::{executor::spawn_beside, jitter},
};

/// How many requests may wait for the driver of a user's own client. Further requests wait for room.
const LONGEST_QUEUE: usize = 1 << 12;

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
    /// How long a request and its reply took lately, in nanoseconds. Zero if not known.
    pub(super) round_trip: Arc<AtomicU64>,
}

/// Called once when nothing more is sent on a connection.
pub(super) type Listener = Arc<dyn Fn(&Arc<Connection>) + Send + Sync>;

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
    let mut handshake = Handshake::new(Terms {
        address,
        purpose: settings.purpose,
        is_by_sentinels: primary.is_some(),
        channel: settings.events.channel(),
        name: connection_name(address.label()),
        written: format!("{RESERVED}check:{:x}:", jitter::number()),
        within: settings.timing.connect_timeout,
        started: CLOCK.now(),
    });
    // Bounded by the handshake, which gives up something before each connection but the first two.
    loop {
        let credentials = credentials_for(address).await?;
        let pause = match opening.connect(credentials.as_ref()).await {
            Err(failure) => handshake.failed(failure, CLOCK.now())?,
            Ok(current) => {
                let mut step = handshake.connected(credentials, current.speaks_resp3)?;
                loop {
                    match step {
                        Step::Ask(message, within) => {
                            let until = within.map(|within| CLOCK.now().after(within));
                            let replies = current.connection.several(message, None, until).await;
                            step = handshake.answered(replies, CLOCK.now())?;
                        }
                        Step::Ready(found) => return Ok(opening.opened(current, found)),
                        Step::Reconnect(pause) => break pause,
                    }
                }
            }
        };
        sleep(pause).await;
    }
}

impl Opening<'_> {
    /// Notes what a connection can do.
    fn opened(&self, mut current: CurrentConnection, found: Found) -> CurrentConnection {
        let events = &self.settings.events;
        if let Some(why) = found.not_subscribed {
            events.not_subscribed(self.address.shown(), &why);
        }
        if let Some(known) = found.capabilities {
            events.opened(known);
        }
        current.speaks_resp3 = found.speaks_resp3;
        current.capabilities = found.capabilities;
        current.is_subscribed = found.is_subscribed;
        current
    }

    /// Makes a connection. Only a user's own client speaks RESP3 from the start, since it logs in itself.
    async fn connect(
        &self,
        credentials: Option<&Credentials>,
    ) -> Result<CurrentConnection, Failure> {
        let traffic = Arc::new(Traffic::new(self.settings.round_trip.clone()));
        if self.address.client().is_some() {
            return self.connect_by_client(credentials, traffic).await;
        }
        let (address, patience) = (self.address, self.settings.timing.command_timeout);
        let connected = stream::connect(address, patience).await;
        let stream = connected.map_err(|error| errors::unreachable(&error, address))?;
        let events = self.settings.events.clone();
        let session = Session::start(stream, traffic.clone(), events);
        let connection = Connection::of_session(session, traffic);
        Ok(self.watched(connection, credentials, false))
    }

    /// The driver of the client runs on this thread.
    async fn connect_by_client(
        &self,
        credentials: Option<&Credentials>,
        traffic: Arc<Traffic>,
    ) -> Result<CurrentConnection, Failure> {
        let given = self.address.client().cloned().unwrap_or_default();
        let config = given
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(LONGEST_QUEUE);
        let (events, ended) = (self.settings.events.clone(), traffic.clone());
        let with_pushes = config.clone().set_push_sender(move |message: PushInfo| {
            if message.kind == PushKind::Disconnection {
                ended.end(NoReply::Broken("the connection has ended".into()));
            }
            events.pushed(&message);
            Ok::<(), ()>(())
        });
        let (resp2, resp3) = (ProtocolVersion::RESP2, ProtocolVersion::RESP3);
        let opened = match self.address.open(credentials, resp3, &with_pushes).await {
            // In RESP2 there are no pushes, and the next request notices the end of the connection.
            Err(error) if knows_no_resp3(&error) => {
                let opened = self.address.open(credentials, resp2, &config).await;
                opened.map(|handle| (handle, false))
            }
            opened => opened.map(|handle| (handle, true)),
        };
        let (handle, speaks_resp3) =
            opened.map_err(|error| errors::ungreeted(&error, self.address))?;
        let connection = Connection::of_client(handle, traffic);
        Ok(self.watched(connection, credentials, speaks_resp3))
    }

    /// Spawns a task that watches the connection until it is over, and authenticates it anew before its credentials end.
    fn watched(
        &self,
        connection: Connection,
        credentials: Option<&Credentials>,
        speaks_resp3: bool,
    ) -> CurrentConnection {
        let (connection, address) = (Arc::new(connection), self.address.clone());
        let current = CurrentConnection {
            connection: connection.clone(),
            address: address.clone(),
            found: None,
            speaks_resp3,
            capabilities: None,
            is_subscribed: false,
        };
        let (transaction, timing) = (self.settings.transaction.clone(), self.settings.timing);
        let (listener, due) = (self.listener.clone(), credentials.and_then(due));
        spawn_beside(async move {
            let silent = || {
                let server = address.shown();
                tracing::warn!(server, "the connection is dead; making a new one");
            };
            let left = || listener(&connection);
            let until_its_end = connection.watch(timing.command_timeout, silent, left);
            // Dropped with the watch: its pause may be a day long.
            let within = timing.connect_timeout;
            let authenticated =
                keep_authenticated(&connection, &address, &transaction, due, within);
            tokio::select! {
                biased;
                () = until_its_end => {}
                never = authenticated => match never {},
            }
        });
        current
    }
}

/// Whether the server, or a proxy before it, does not speak the third version of the protocol.
fn knows_no_resp3(error: &RedisError) -> bool {
    let details = error.detail().unwrap_or_default();
    error.kind() == ErrorKind::RESP3NotSupported
        || error.code() == Some("NOPROTO")
        || details.contains("unknown command")
        || details.contains("protocol version")
}

/// The name that `CLIENT LIST` shows for a connection: the program, and its label or process id.
fn connection_name(label: Option<&str>) -> String {
    // In a simulation each run must send the same bytes.
    #[cfg(feature = "simulation")]
    if let Some(label) = crate::runtime::simulation::ask(|world| world.label()) {
        return format!("lock-core:{label}");
    }
    let program = env::current_exe().ok();
    let program = program.as_deref().and_then(Path::file_name);
    let program = program.unwrap_or_default().to_string_lossy();
    // The server accepts no spaces and no special characters in a name.
    let shown = program.chars().filter(char::is_ascii_graphic).take(40);
    let shown: String = shown.collect();
    let id = process::id().to_string();
    format!("lock-core:{shown}:{}", label.unwrap_or(&id))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::{io::DuplexStream, time::Instant};

    use super::*;
    use crate::backend::redis::transport::{
        address::{security::Security, url::ServerUrl},
        command::{Arg, command},
        connection_events::RepliesOnly,
        stream::Stream,
    };

    fn to(url: &str) -> ConnectionSettings {
        let url = ServerUrl::parse(url).expect("whole");
        ConnectionSettings {
            address: Address::of(&url, &Security::default()).expect("whole"),
            purpose: Purpose::OtherCommands,
            timing: Timing::default(),
            events: Arc::new(RepliesOnly),
            transaction: Arc::default(),
            round_trip: Arc::default(),
        }
    }

    /// A connection that is watched, and the other end of its stream.
    fn watched(credentials: Option<&Credentials>) -> (CurrentConnection, DuplexStream) {
        let (ours, theirs) = tokio::io::duplex(1 << 12);
        let traffic = Arc::<Traffic>::default();
        let stream = Stream::Fixed(Box::new(ours));
        let session = Session::start(stream, traffic.clone(), Arc::new(RepliesOnly));
        let settings = to("redis://user:password@host");
        let opening = Opening {
            settings: &settings,
            address: &settings.address,
            listener: Arc::new(|_| ()),
        };
        let connection = Connection::of_session(session, traffic);
        (opening.watched(connection, credentials, false), theirs)
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_has_ended_is_not_kept_until_its_credentials_end() {
        let day = Duration::from_secs(24 * 60 * 60);
        let credentials = Credentials::new("user", "password").valid_for(day);
        let (current, theirs) = watched(Some(&credentials));
        let kept = Arc::downgrade(&current.connection);
        drop((current, theirs));
        let started = Instant::now();
        while kept.upgrade().is_some() {
            assert!(started.elapsed() < day / 2, "it is kept");
            sleep(Duration::from_secs(1)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_swallows_requests_ends_within_two_time_outs_and_a_second() {
        let (current, _never_read) = watched(None);
        let started = Instant::now();
        let ping = command(&[&[Arg::Text("PING")]]);
        let reply = current.connection.several(ping, None, None).await;
        assert!(matches!(reply, Err(NoReply::Broken(_))), "{reply:?}");
        let longest = Timing::default().command_timeout * 2 + Duration::from_secs(1);
        assert!(started.elapsed() <= longest, "{:?}", started.elapsed());
    }
}
