//! Opening a connection to an address, and making it ready for use. `handshake.rs` decides what is sent.

use std::{env, path::Path, process, sync::Arc, time::Duration};

use redis::{AsyncConnectionConfig, ErrorKind, ProtocolVersion, PushInfo, PushKind, RedisError};
use tokio::time::sleep;

use crate::{
    backend::redis::transport::{
        CLOCK,
        address::Address,
        authentication::{credentials_for, due, keep_authenticated},
        connection::{Connection, CurrentConnection, Line},
        errors,
        handshake::{Handshake, Known, Step, Terms},
        known_primary::Need,
        reconnecting::ReconnectingConnection,
        session::Session,
        stream,
        traffic::{NoReply, Traffic},
    },
    credentials::Credentials,
    failure::Failure,
    options::RESERVED,
    runtime::{executor::spawn_detached, jitter},
};

/// The number of requests that may wait for the driver of a user's own client. Further requests wait for a free slot.
const LONGEST_QUEUE: usize = 1 << 12;

impl ReconnectingConnection {
    /// Makes a connection, to the primary that the sentinels name if there are any. The caller bounds the time.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection.
    pub(super) async fn open(self: &Arc<Self>) -> Result<CurrentConnection, Failure> {
        let Some(sentinels) = self.sentinels() else {
            return self.open_at(self.address()).await;
        };
        let found = sentinels.clone().primary(Need::Connect).await?;
        let primary = self.address().at(&found.host, found.port);
        let mut current = self.open_at(&primary).await?;
        // Another connection may have learned of a fail-over in the meantime.
        if !sentinels.is_still(&found) {
            return Err(Failure::not_now(format!(
                "{primary} was replaced while the connection to it was made"
            )));
        }
        current.found = Some(found);
        Ok(current)
    }

    async fn open_at(self: &Arc<Self>, address: &Address) -> Result<CurrentConnection, Failure> {
        let mut handshake = Handshake::new(Terms {
            address,
            purpose: self.purpose,
            is_by_sentinels: self.sentinels().is_some(),
            channel: self.events.channel(),
            name: connection_name(address.label()),
            written: format!("{RESERVED}check:{:x}:", jitter::number()),
            within: self.timing().connect_timeout,
            started: CLOCK.now(),
        });
        // Bounded by the handshake, which asks for another connection only a few times for each reason.
        loop {
            let credentials = credentials_for(address).await?;
            let pause = match self.connect(address, credentials.as_ref()).await {
                Err(failure) => handshake.failed(failure, CLOCK.now())?,
                Ok(current) => {
                    let mut step = handshake.connected(credentials, current.known.speaks_resp3)?;
                    loop {
                        match step {
                            Step::Ask(message, within) => {
                                let until = within.map(|within| CLOCK.now().after(within));
                                let replies =
                                    current.connection.several(message, None, until).await;
                                step = handshake.answered(replies, CLOCK.now())?;
                            }
                            Step::Ready(known) => return Ok(self.opened(current, known)),
                            Step::Reconnect(pause) => break pause,
                        }
                    }
                }
            };
            sleep(pause).await;
        }
    }

    fn opened(&self, mut current: CurrentConnection, known: Known) -> CurrentConnection {
        if let Some(why) = &known.not_subscribed {
            self.events.not_subscribed(current.address.shown(), why);
        }
        if let Some(known) = known.capabilities {
            self.events.opened(known);
        }
        current.known = known;
        current
    }

    /// Makes a connection, and spawns a task that watches it until it is over, and reauthenticates it before its credentials
    /// expire.
    async fn connect(
        self: &Arc<Self>,
        address: &Address,
        credentials: Option<&Credentials>,
    ) -> Result<CurrentConnection, Failure> {
        let traffic = Arc::new(Traffic::new(self.round_trip.clone()));
        // Only a user's own client speaks RESP3 from the start, since it sends the greeting itself.
        let (connection, speaks_resp3) = if let Some(given) = address.client() {
            self.connect_by_client(address, given, credentials, traffic)
                .await?
        } else {
            let connected = stream::connect(address, self.timing().command_timeout).await;
            let stream = connected.map_err(|error| errors::unreachable(&error, address))?;
            let session = Session::start(stream, traffic.clone(), self.events.clone());
            (Connection::new(Line::Session(session), traffic), false)
        };
        let connection = Arc::new(connection);
        self.watch(
            connection.clone(),
            address.clone(),
            credentials.and_then(due),
        );
        Ok(CurrentConnection {
            connection,
            address: address.clone(),
            found: None,
            known: Known {
                speaks_resp3,
                ..Known::default()
            },
        })
    }

    /// Connects by a user's own client, whose driver runs on this thread.
    async fn connect_by_client(
        &self,
        address: &Address,
        given: &AsyncConnectionConfig,
        credentials: Option<&Credentials>,
        traffic: Arc<Traffic>,
    ) -> Result<(Connection, bool), Failure> {
        let config = (given.clone())
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(LONGEST_QUEUE);
        let (events, ended) = (self.events.clone(), traffic.clone());
        let with_pushes = config.clone().set_push_sender(move |message: PushInfo| {
            if message.kind == PushKind::Disconnection {
                ended.end(NoReply::Broken("the connection has ended".into()));
            }
            events.pushed(&message);
            Ok::<(), ()>(())
        });
        let (resp2, resp3) = (ProtocolVersion::RESP2, ProtocolVersion::RESP3);
        let (opened, speaks_resp3) = match address.open(credentials, resp3, &with_pushes).await {
            // In RESP2 there are no pushes, and the next request notices the end of the connection.
            Err(error) if knows_no_resp3(&error) => {
                (address.open(credentials, resp2, &config).await, false)
            }
            opened => (opened, true),
        };
        let handle = opened.map_err(|error| errors::ungreeted(&error, address))?;
        Ok((Connection::new(Line::Client(handle), traffic), speaks_resp3))
    }

    fn watch(
        self: &Arc<Self>,
        connection: Arc<Connection>,
        address: Address,
        due: Option<Duration>,
    ) {
        let (transaction, timing, weak) = (
            self.transaction.clone(),
            self.timing(),
            Arc::downgrade(self),
        );
        spawn_detached(async move {
            let silent = || {
                let server = address.shown();
                tracing::warn!(server, "the connection is dead; making a new one");
            };
            let left = || {
                if let Some(reconnecting) = weak.upgrade() {
                    reconnecting.note_left(&connection);
                }
            };
            let until_its_end = connection.watch(timing.command_timeout, silent, left);
            // Dropped with the watch, since its pause may be a day long.
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

/// Returns `true` if the server, or a proxy before it, does not speak the third version of the protocol.
fn knows_no_resp3(error: &RedisError) -> bool {
    let details = error.detail().unwrap_or_default();
    error.kind() == ErrorKind::RESP3NotSupported
        || error.code() == Some("NOPROTO")
        || details.contains("unknown command")
        || details.contains("protocol version")
}

/// Returns the name that `CLIENT LIST` shows for a connection: the program, and its label or process id.
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
    use tokio::{io::DuplexStream, time::Instant};

    use super::*;
    use crate::backend::{
        redis::transport::{
            address::{security::Security, url::ServerUrl},
            command::{Arg, command},
            connection_events::RepliesOnly,
            handshake::Purpose,
            stream::Stream,
        },
        timing::Timing,
    };

    /// Returns a connection that is watched, and the other end of its stream.
    fn watched(due: Option<Duration>) -> (Arc<Connection>, DuplexStream) {
        let (ours, theirs) = tokio::io::duplex(1 << 12);
        let traffic = Arc::<Traffic>::default();
        let stream = Stream::Fixed(Box::new(ours));
        let events = Arc::new(RepliesOnly);
        let session = Session::start(stream, traffic.clone(), events.clone());
        let url = ServerUrl::parse("redis://user:password@host").expect("whole");
        let address = Address::of(&url, &Security::default()).expect("whole");
        let (purpose, timing) = (Purpose::OtherCommands, Timing::default());
        let server = ReconnectingConnection::new(address.clone(), None, purpose, timing, events);
        let connection = Arc::new(Connection::new(Line::Session(session), traffic));
        Arc::new(server).watch(connection.clone(), address, due);
        (connection, theirs)
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_has_ended_is_not_kept_until_its_credentials_expire() {
        let day = Duration::from_secs(24 * 60 * 60);
        let (connection, theirs) = watched(Some(day));
        let kept = Arc::downgrade(&connection);
        drop((connection, theirs));
        let started = Instant::now();
        while kept.upgrade().is_some() {
            assert!(started.elapsed() < day / 2, "the connection is kept");
            sleep(Duration::from_secs(1)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_swallows_requests_ends_within_two_time_outs_and_a_second() {
        let (connection, _never_read) = watched(None);
        let started = Instant::now();
        let ping = command(&[&[Arg::Text("PING")]]);
        let reply = connection.several(ping, None, None).await;
        assert!(matches!(reply, Err(NoReply::Broken(_))), "{reply:?}");
        let longest = Timing::default().command_timeout * 2 + Duration::from_secs(1);
        assert!(started.elapsed() <= longest, "{:?}", started.elapsed());
    }
}
