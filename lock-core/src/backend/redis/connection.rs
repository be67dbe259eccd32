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
    AsyncConnectionConfig, Cmd, Pipeline, RedisError, ServerError, Value,
    aio::MultiplexedConnection,
};

use crate::{
    backend::{
        Failure,
        redis::{address::Address, failure},
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
    state: Mutex<State>,
    /// Held by whoever connects; the others wait for what comes of it, each within its own time-out.
    connecting: tokio::sync::Mutex<()>,
    /// Smoothed, in nanoseconds; zero if not known.
    round_trip: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    current: Option<Arc<Connection>>,
    last_number: u64,
    last_failure: Option<(Moment, Failure)>,
}

/// One connection, from its handshake to its end.
#[derive(Debug)]
struct Connection {
    id: ConnectionId,
    pipe: MultiplexedConnection,
    /// When something last came back, in nanoseconds of the clock.
    heard: AtomicU64,
    /// Whether a PING is on its way that decides over it.
    probed: AtomicBool,
}

const CLOCK: Clock = Clock::Boot;

impl Link {
    pub(super) fn new(address: Address, timing: Timing) -> Self {
        Self {
            address,
            timing,
            state: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
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
        self.exchange(within, trail, async |mut pipe: MultiplexedConnection| {
            pipe.send_packed_command(command).await
        })
        .await
    }

    /// Sends several commands in one message, with one time-out; one answer each.
    pub(super) async fn send_all(
        self: &Arc<Self>,
        commands: &Pipeline,
        count: usize,
        within: Duration,
    ) -> Result<Vec<Value>, Failure> {
        self.exchange(within, None, async |mut pipe: MultiplexedConnection| {
            pipe.send_packed_commands(commands, 0, count).await
        })
        .await
        .map(|(_, values)| values)
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
            let answer = send(connection.pipe.clone()).await;
            match answer {
                Ok(value) => {
                    self.measure(connection.hear(start));
                    Ok((connection.id, value))
                }
                Err(error) => {
                    self.discard(&connection);
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
    async fn connection(&self) -> Result<Arc<Connection>, Failure> {
        if let Some(connection) = self.current() {
            return Ok(connection);
        }
        let _connecting = self.connecting.lock().await;
        if let Some(connection) = self.current() {
            return Ok(connection);
        }
        if let Some((at, failure)) = self.lock().last_failure.clone()
            && CLOCK.now().since(at) < RECONNECT_PAUSE
        {
            return Err(failure);
        }
        // Dropped here, by a caller's time-out: the half-made connection is closed, and the next caller makes another.
        match self.connect().await {
            Ok(pipe) => Ok(self.install(pipe)),
            Err(failure) => {
                self.lock().last_failure = Some((CLOCK.now(), failure.clone()));
                Err(failure)
            }
        }
    }

    /// Makes a connection; the handshake is bounded too.
    async fn connect(&self) -> Result<MultiplexedConnection, Failure> {
        let client = redis::Client::open(self.address.info.clone())
            .map_err(|error| failure::broken(&error))?;
        // Time-outs are ours, and there are no retries: a request that is sent twice must be sent knowingly.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(QUEUE);
        let timeout = self.timing.connect_timeout;
        let handshake = client.get_multiplexed_async_connection_with_config(&config);
        match tokio::time::timeout(timeout, handshake).await {
            Ok(Ok(pipe)) => Ok(pipe),
            Ok(Err(error)) => Err(failure::connecting(&error, &self.address)),
            Err(_) => Err(Failure::no_answer(format!(
                "no connection to {} within {timeout:?}",
                self.address.shown()
            ))),
        }
    }

    fn install(&self, pipe: MultiplexedConnection) -> Arc<Connection> {
        let mut state = self.lock();
        state.last_number += 1;
        state.last_failure = None;
        let connection = Arc::new(Connection {
            id: ConnectionId::new(state.last_number),
            pipe,
            heard: AtomicU64::new(CLOCK.now().as_nanos()),
            probed: AtomicBool::new(false),
        });
        state.current = Some(connection.clone());
        drop(state);
        tracing::debug!(server = self.address.shown(), "connected");
        connection
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
                link.discard(&connection);
            }
        }));
    }

    /// Never uses a connection again. It closes when the last request on it has been given up.
    fn discard(&self, connection: &Arc<Connection>) {
        let mut state = self.lock();
        if state
            .current
            .as_ref()
            .is_some_and(|current| current.id == connection.id)
        {
            state.current = None;
        }
    }

    /// A server that was demoted to a replica stays one: the next command looks the primary up anew.
    pub(super) fn heed(&self, id: ConnectionId, error: &ServerError) {
        if error.code() != "READONLY" {
            return;
        }
        let mut state = self.lock();
        if state
            .current
            .as_ref()
            .is_some_and(|current| current.id == id)
        {
            state.current = None;
        }
    }

    fn current(&self) -> Option<Arc<Connection>> {
        self.lock().current.clone()
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
