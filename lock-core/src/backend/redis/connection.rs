//! The one connection to a server, watched and replaced.
//!
//! The client library multiplexes commands over one connection and tells when the socket is closed. It does not notice a
//! half-open one, on which nothing ever comes back. So each command has a time-out; after one, a PING is sent, and if
//! nothing at all comes back within a second time-out, the connection is replaced.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, Pipeline, ProtocolVersion, PushInfo,
    RedisError, Value,
    aio::{MultiplexedConnection, SendError},
};
use tokio::sync::watch;

use crate::{
    backend::{
        Failure,
        redis::{address::Address, failure, mailbox::Mailbox},
    },
    clock::{Clock, Moment},
    engine::Timing,
    trail::{ConnectionId, Trail},
};

/// How many commands may stand before the socket; beyond, senders wait, each at most for its time-out.
const QUEUE: usize = 4096;

/// A server that is only slow for this long keeps its connection.
const SHORTEST_PROBE: Duration = Duration::from_millis(250);

/// After a failed connect the next one waits this long, so that many callers do not storm a server that is down.
const RECONNECT_PAUSE: Duration = Duration::from_millis(50);

/// Connects, and reconnects, to one server.
#[derive(Debug)]
pub(super) struct Link {
    address: Address,
    timing: Timing,
    mailbox: Mailbox,
    state: Mutex<State>,
    /// Smoothed, in nanoseconds; zero if not known.
    round_trip: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    current: Option<Arc<Connection>>,
    last_number: u64,
    last_failure: Option<(Moment, Failure)>,
    /// What comes of the connection that is being made; those who need it wait, each within its own time-out.
    connecting: Option<watch::Receiver<Option<Connected>>>,
}

type Connected = Result<Arc<Connection>, Failure>;

/// One connection, from its handshake to its end.
#[derive(Debug)]
struct Connection {
    id: ConnectionId,
    pipe: MultiplexedConnection,
    /// Whether grants arrive on it.
    grants: bool,
    /// When something last came back, in nanoseconds of the clock.
    heard: AtomicU64,
    /// Whether a PING is on its way that decides over it.
    probed: AtomicBool,
}

const CLOCK: Clock = Clock::Boot;

impl Link {
    pub(super) fn new(address: Address, timing: Timing, mailbox: Mailbox) -> Self {
        Self {
            address,
            timing,
            mailbox,
            state: Mutex::default(),
            round_trip: AtomicU64::new(0),
        }
    }

    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    pub(super) fn timing(&self) -> Timing {
        self.timing
    }

    pub(super) fn round_trip(&self) -> Duration {
        Duration::from_nanos(self.round_trip.load(Ordering::Relaxed))
    }

    /// Sends a command and reads its answer, an error of the server included, within a time-out.
    ///
    /// `trail` gets to know the connection before the first byte leaves.
    pub(super) async fn send(
        self: &Arc<Self>,
        command: &Cmd,
        within: Duration,
        trail: Option<&Trail>,
    ) -> Result<(ConnectionId, Value), Failure> {
        let (id, answer) = self
            .exchange(within, trail, async |mut pipe: MultiplexedConnection| {
                pipe.send_packed_command(command).await
            })
            .await?;
        self.heed(id, &answer);
        Ok((id, answer))
    }

    /// Sends several commands in one message, with one time-out; one answer each.
    pub(super) async fn send_all(
        self: &Arc<Self>,
        commands: &Pipeline,
        count: usize,
        within: Duration,
    ) -> Result<Vec<Value>, Failure> {
        let (id, answers) = self
            .exchange(within, None, async |mut pipe: MultiplexedConnection| {
                pipe.send_packed_commands(commands, 0, count).await
            })
            .await?;
        for answer in &answers {
            self.heed(id, answer);
        }
        Ok(answers)
    }

    async fn exchange<T>(
        self: &Arc<Self>,
        within: Duration,
        trail: Option<&Trail>,
        send: impl AsyncFnOnce(MultiplexedConnection) -> Result<T, RedisError>,
    ) -> Result<(ConnectionId, T), Failure> {
        let start = CLOCK.now();
        let mut used = None;
        let exchange = async {
            let connection = self.connection().await?;
            if let Some(trail) = trail {
                trail.departs_on(connection.id);
            }
            used = Some(connection.clone());
            let left = CLOCK.now();
            let answer = send(connection.pipe.clone()).await;
            match answer {
                Ok(value) => {
                    self.measure(connection.hear(left));
                    Ok((connection.id, value))
                }
                Err(error) => {
                    self.forget(connection.id);
                    Err(failure::broken(&error))
                }
            }
        };
        let timed = tokio::time::timeout(within, exchange).await;
        timed.unwrap_or_else(|_| {
            if let Some(connection) = used {
                self.suspect(&connection, start, within);
            }
            Err(Failure::no_answer(format!(
                "no answer from {} within {within:?}",
                self.address.shown()
            )))
        })
    }

    /// The current connection, or a new one.
    ///
    /// # Cancel safety
    ///
    /// A connection that is being made is nobody's: dropping the future leaves it to the next one who asks.
    async fn connection(self: &Arc<Self>) -> Result<Arc<Connection>, Failure> {
        let mut made = {
            let mut state = self.lock();
            if let Some(connection) = &state.current {
                return Ok(connection.clone());
            }
            if let Some((at, failure)) = &state.last_failure
                && CLOCK.now().since(*at) < RECONNECT_PAUSE
            {
                return Err(failure.clone());
            }
            state
                .connecting
                .get_or_insert_with(|| self.start_connecting())
                .clone()
        };
        let result = made
            .wait_for(Option::is_some)
            .await
            .ok()
            .and_then(|result| result.clone());
        result.unwrap_or_else(|| Err(Failure::no_answer("the runtime that connects has ended")))
    }

    /// Connects apart from whoever asked first: a renewal has less time for its answer than a connection may take.
    fn start_connecting(self: &Arc<Self>) -> watch::Receiver<Option<Connected>> {
        let (tell, made) = watch::channel(None);
        let link = self.clone();
        drop(tokio::spawn(async move {
            let result = match link.connect().await {
                Ok((pipe, grants)) => Ok(link.install(pipe, grants)),
                Err(failure) => Err(failure),
            };
            let mut state = link.lock();
            state.connecting = None;
            state.last_failure = result
                .as_ref()
                .err()
                .map(|failure| (CLOCK.now(), failure.clone()));
            drop(state);
            tell.send_replace(Some(result));
        }));
        made
    }

    /// Makes a connection; its opening is bounded too. Returns whether grants arrive on it.
    async fn connect(&self) -> Result<(MultiplexedConnection, bool), Failure> {
        let timeout = self.timing.connect_timeout;
        let opening = tokio::time::timeout(timeout, self.open()).await;
        opening.unwrap_or_else(|_| {
            Err(Failure::no_answer(format!(
                "no connection to {} within {timeout:?}",
                self.address.shown()
            )))
        })
    }

    async fn open(&self) -> Result<(MultiplexedConnection, bool), Failure> {
        if self.address.pushes
            && let Some(opened) = self.open_with_grants().await?
        {
            return Ok(opened);
        }
        let client = self.client(self.address.info(ProtocolVersion::RESP2))?;
        let pipe = client
            .get_multiplexed_async_connection_with_config(&config())
            .await;
        Ok((
            pipe.map_err(|error| failure::connecting(&error, &self.address))?,
            false,
        ))
    }

    /// `None` if the server, or a proxy before it, does not speak RESP3.
    async fn open_with_grants(&self) -> Result<Option<(MultiplexedConnection, bool)>, Failure> {
        let client = self.client(self.address.info(ProtocolVersion::RESP3))?;
        let mailbox = self.mailbox.clone();
        let config = config().set_push_sender(move |push: PushInfo| {
            mailbox.take(&push);
            Ok::<_, SendError>(())
        });
        let mut pipe = match client
            .get_multiplexed_async_connection_with_config(&config)
            .await
        {
            Ok(pipe) => pipe,
            Err(error) if failure::knows_no_resp3(&error) => return Ok(None),
            Err(error) => return Err(failure::connecting(&error, &self.address)),
        };
        // Confirmed before anybody can stand in a queue: a grant must not come before there is somebody to hear it.
        match pipe.subscribe(&*self.mailbox.channel).await {
            Ok(()) => Ok(Some((pipe, true))),
            Err(error) if error.code() == Some("NOPERM") => {
                tracing::warn!(
                    server = self.address.shown(),
                    "this user may not subscribe to `{}`, so waiters ask again and again instead of being told",
                    self.mailbox.channel
                );
                Ok(Some((pipe, false)))
            }
            Err(error) => Err(failure::connecting(&error, &self.address)),
        }
    }

    fn client(&self, info: ConnectionInfo) -> Result<Client, Failure> {
        Client::open(info).map_err(|error| failure::connecting(&error, &self.address))
    }

    fn install(&self, pipe: MultiplexedConnection, grants: bool) -> Arc<Connection> {
        let mut state = self.lock();
        state.last_number += 1;
        let connection = Arc::new(Connection {
            id: ConnectionId::new(state.last_number),
            pipe,
            grants,
            heard: AtomicU64::new(CLOCK.now().as_nanos()),
            probed: AtomicBool::new(false),
        });
        state.current = Some(connection.clone());
        drop(state);
        tracing::debug!(server = self.address.shown(), "connected");
        // Grants may have been published while nobody listened.
        self.mailbox.rouse_all();
        connection
    }

    /// Whether grants arrive; without a connection, they will on the next one as far as is known.
    pub(super) fn has_grants(&self) -> bool {
        self.lock()
            .current
            .as_ref()
            .map_or(self.address.pushes, |connection| connection.grants)
    }

    /// Nothing came back in time: finds out whether the connection is dead, unless something came back meanwhile.
    fn suspect(self: &Arc<Self>, connection: &Arc<Connection>, sent: Moment, waited: Duration) {
        if connection.heard_since(sent) || connection.probed.swap(true, Ordering::AcqRel) {
            return;
        }
        let (link, connection) = (Arc::downgrade(self), connection.clone());
        // As long again as was waited for: a renewal of a short lease cannot wait for a whole time-out more.
        let patience = waited.max(SHORTEST_PROBE).min(self.timing.command_timeout);
        drop(tokio::spawn(async move {
            let asked = CLOCK.now();
            let mut pipe = connection.pipe.clone();
            let ping =
                tokio::time::timeout(patience, pipe.send_packed_command(&redis::cmd("PING"))).await;
            if let Ok(Ok(_)) = ping {
                connection.hear(asked);
            }
            connection.probed.store(false, Ordering::Release);
            if !connection.heard_since(asked)
                && let Some(link) = link.upgrade()
            {
                tracing::warn!(
                    server = link.address.shown(),
                    "the connection is dead; making a new one"
                );
                link.forget(connection.id);
            }
        }));
    }

    /// Never uses a connection again. It closes when the last request on it has been given up.
    fn forget(&self, id: ConnectionId) {
        let mut state = self.lock();
        if state
            .current
            .as_ref()
            .is_some_and(|current| current.id == id)
        {
            state.current = None;
        }
    }

    /// A server that was demoted to a replica stays one: the next command looks the primary up anew.
    fn heed(&self, id: ConnectionId, answer: &Value) {
        if let Value::ServerError(error) = answer
            && failure::code_of(error) == "READONLY"
        {
            self.forget(id);
        }
    }

    /// An eighth of each new measurement, as TCP does.
    fn measure(&self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let before = self.round_trip.load(Ordering::Relaxed);
        let after = if before == 0 {
            took
        } else {
            before - before / 8 + took / 8
        };
        self.round_trip.store(after, Ordering::Relaxed);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Time-outs are ours, and there are no retries: a request that is sent twice must be sent knowingly.
fn config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_pipeline_buffer_size(QUEUE)
}

impl Connection {
    /// Notes that something came back; returns how long it took.
    fn hear(&self, sent: Moment) -> Duration {
        let now = CLOCK.now();
        self.heard.store(now.as_nanos(), Ordering::Release);
        now.since(sent)
    }

    fn heard_since(&self, moment: Moment) -> bool {
        self.heard.load(Ordering::Acquire) >= moment.as_nanos()
    }
}
