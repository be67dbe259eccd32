//! From an address to a connection that is ready for use: log in, select the database, and subscribe to push messages.

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use redis::{ProtocolVersion, PushInfo, PushKind, Value};
use tokio::{
    sync::Mutex,
    time::{sleep, timeout},
};

use crate::{
    backend::{
        redis::transport::{
            CLOCK,
            address::Address,
            authentication::{auth, credentials_for, due, keep_authenticated},
            capabilities::Capabilities,
            command::Arg,
            connection::Connection,
            connection_events::ConnectionEvents,
            errors,
            handshake::{CurrentConnection, Hello, Purpose, knows_no_resp3},
            session::Session,
            stream,
            traffic::{NoReply, Traffic},
        },
        timing::Timing,
    },
    credentials::Credentials,
    failure::Failure,
    options::RESERVED,
    runtime::executor::spawn_beside,
};

/// How many requests may wait for the driver of a user's own client. Further requests wait for room.
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
    let was_known = address.has_spoken();
    let (mut gives_up, mut not_subscribed) = (false, None);
    let mut has_ended_once = false;
    // Bounded: each round but the first gives up something, or is the only one after the first end.
    loop {
        let current = opening.log_in().await?;
        if primary.is_some() {
            current.expect_a_primary().await?;
        }
        match settings.purpose {
            Purpose::Pushes if !current.speaks_resp3 => {
                let why = format!("{address} {NO_RESP3}");
                return Err(Failure::refused(why));
            }
            Purpose::Pushes | Purpose::OtherCommands => return Ok(current),
            Purpose::Locks | Purpose::LocksOnly | Purpose::Requests => {}
        }
        // The greeting may just have shown that the server closes connections.
        let asks_all = !gives_up && !address.closes_at_unknown();
        let failure = match opening.ask(&current, asks_all, &mut not_subscribed).await {
            Ok(known) => {
                if asks_all {
                    address.note_spoke();
                } else if !current.speaks_resp3 {
                    address.note_closes_at_unknown();
                }
                return Ok(opening.opened(current, known, not_subscribed));
            }
            Err(failure) => failure,
        };
        let has_ended = current.connection.traffic.has_ended();
        if let Failure::NotNow(_) = failure {
            return Err(failure);
        }
        if has_ended && !has_ended_once {
            // By chance, perhaps.
            has_ended_once = true;
        } else if settings.purpose == Purpose::Locks && not_subscribed.is_none() {
            // Some servers take nothing but subscriptions after one. Some proxies close the connection at SUBSCRIBE, and some drop it
            // without a reply. Later replies on that connection may then be assigned to the wrong request.
            not_subscribed = Some(failure.text());
        } else if has_ended && asks_all && !was_known {
            gives_up = true;
        } else {
            return Err(failure);
        }
    }
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
        if address.client().is_some() {
            return self.open_by_client(credentials).await;
        }
        let mut current = self.connect(credentials).await?;
        let mut closed = 0;
        // Some servers and proxies close a connection that speaks RESP3. It may also have ended by chance, so there are two of them.
        while address.pushes() && !address.closes_at_unknown() && closed < 2 {
            let replied = current.hello(self.settings.purpose, credentials).await;
            if replied? == Hello::Replied {
                break;
            }
            current = self.connect(credentials).await?;
            closed += 1;
        }
        if let (false, Some(credentials)) = (current.speaks_resp3, credentials) {
            current.expect_okay(&auth(credentials)).await?;
        }
        current.set_up().await?;
        if closed == 2 {
            current.ask(&[Arg::Text("PING")]).await?;
            address.note_closes_at_unknown();
        }
        Ok(current)
    }

    /// Subscribes, unless it is known why that has no effect, and asks what can be done.
    async fn ask(
        &self,
        current: &CurrentConnection,
        asks_all: bool,
        not_subscribed: &mut Option<String>,
    ) -> Result<Capabilities, Failure> {
        if self.settings.purpose == Purpose::Locks && not_subscribed.is_none() {
            *not_subscribed = self.listen(current).await?;
        }
        let mut known = current.ask_capabilities(asks_all).await?;
        // A node of a cluster has not all keys, and a proxy that speaks the third version of the protocol is not known.
        let may_be_several = self.settings.purpose != Purpose::LocksOnly && !current.speaks_resp3;
        if may_be_several && known.scripts && known.forwards_all && !current.is_one_server().await?
        {
            known.forwards_all = false;
        }
        Ok(known)
    }

    /// Notes what a connection can do.
    fn opened(
        &self,
        mut current: CurrentConnection,
        known: Capabilities,
        not_subscribed: Option<String>,
    ) -> CurrentConnection {
        let events = &self.settings.events;
        // Without scripts there is no queue.
        if self.settings.purpose == Purpose::Locks && known.scripts {
            current.is_subscribed = not_subscribed.is_none();
            if let Some(why) = not_subscribed {
                events.not_subscribed(self.address.shown(), &why);
            }
        }
        current.capabilities = Some(known);
        events.opened(known);
        current
    }

    /// Subscribes to the channel. Returns why no push messages arrive, if they do not.
    async fn listen(&self, current: &CurrentConnection) -> Result<Option<String>, Failure> {
        if !current.speaks_resp3 {
            return Ok(Some(format!("it {NO_RESP3}")));
        }
        // Opening takes four round trips at least, so a connection that opens in time gets each reply within a quarter of the time-out.
        let patience = self.settings.timing.connect_timeout / 4;
        let subscribed = subscribe(current, self.settings.events.channel());
        let late = |_| Failure::no_reply(format!("no reply to SUBSCRIBE within {patience:?}"));
        timeout(patience, subscribed).await.map_err(late)?
    }

    /// Connects, and starts a session.
    async fn connect(
        &self,
        credentials: Option<&Credentials>,
    ) -> Result<CurrentConnection, Failure> {
        let (address, patience) = (self.address, self.settings.timing.command_timeout);
        let connected = stream::connect(address, patience).await;
        let stream = connected.map_err(|error| errors::unreachable(&error, address))?;
        let traffic = Arc::new(Traffic::new(self.settings.round_trip.clone()));
        let events = self.settings.events.clone();
        let session = Session::start(stream, traffic.clone(), events);
        let connection = Connection::of_session(session, traffic);
        Ok(self.watched(connection, credentials))
    }

    /// Has the user's own client connect and log in. It drives the connection.
    async fn open_by_client(
        &self,
        credentials: Option<&Credentials>,
    ) -> Result<CurrentConnection, Failure> {
        let resp3 = ProtocolVersion::RESP3;
        let opened = match self.open_client(credentials, resp3).await {
            Err(error) if knows_no_resp3(&error) => {
                self.open_client(credentials, ProtocolVersion::RESP2).await
            }
            opened => opened,
        };
        let (connection, protocol) =
            opened.map_err(|error| errors::ungreeted(&error, self.address))?;
        let mut current = self.watched(connection, credentials);
        if protocol == resp3 {
            current.greet(self.settings.purpose).await?;
        }
        Ok(current)
    }

    async fn open_client(
        &self,
        credentials: Option<&Credentials>,
        protocol: ProtocolVersion,
    ) -> redis::RedisResult<(Connection, ProtocolVersion)> {
        let traffic = Arc::new(Traffic::new(self.settings.round_trip.clone()));
        let given = self.address.client().cloned().unwrap_or_default();
        let mut config = given
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(LONGEST_QUEUE);
        // In the second version of the protocol there are no messages, and the next request notices the end of the connection.
        if protocol == ProtocolVersion::RESP3 {
            let (events, traffic) = (self.settings.events.clone(), traffic.clone());
            config = config.set_push_sender(move |message: PushInfo| {
                if message.kind == PushKind::Disconnection {
                    traffic.end(NoReply::Broken("the connection has ended".into()));
                }
                events.pushed(&message);
                Ok::<(), ()>(())
            });
        }
        let handle = self.address.open(credentials, protocol, &config).await?;
        Ok((Connection::of_client(handle, traffic), protocol))
    }

    /// Spawns a task that watches the connection until it is over, and authenticates it anew before its credentials end.
    fn watched(
        &self,
        connection: Connection,
        credentials: Option<&Credentials>,
    ) -> CurrentConnection {
        let (connection, address) = (Arc::new(connection), self.address.clone());
        let current = CurrentConnection::new(connection.clone(), address.clone());
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

#[cfg(test)]
mod tests {
    use tokio::{io::DuplexStream, time::Instant};

    use super::*;
    use crate::backend::redis::transport::{
        address::{security::Security, url::ServerUrl},
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
        (opening.watched(connection, credentials), theirs)
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
        let reply = current.ask(&[Arg::Text("PING")]).await;
        assert!(matches!(reply, Err(Failure::NoReply(_))), "{reply:?}");
        let longest = Timing::default().command_timeout * 2 + Duration::from_secs(1);
        assert!(started.elapsed() <= longest, "{:?}", started.elapsed());
    }
}
