//! The connection to one server, watched and replaced.
//!
//! A half-open connection looks like an idle one. So each command has a time-out, after which a PING is sent. If nothing at all
//! comes back within a second time-out, the connection is replaced.

use std::{
    pin::pin,
    sync::{Arc, OnceLock, atomic::Ordering},
    time::Duration,
};

use redis::Value;
use tokio::{sync::Semaphore, time::timeout};

use crate::{
    runtime::{clock::Moment, executor::spawn_beside, mutex::Mutex},
    store::{
        Failure,
        in_flight::{ConnectionId, InFlight},
        redis::{
            address::Address,
            connection::{
                CLOCK, Connection,
                capabilities::Capabilities,
                errors,
                handshake::{CurrentConnection, Greeting, Purpose},
                opening,
                pub_sub::PubSubDispatch,
                sentinel::{KnownPrimary, Sentinels},
                wire::{
                    command::{Arg, Outgoing, command},
                    reply,
                    round_trip::RoundTrip,
                    traffic::NoReply,
                },
            },
        },
        timing::{LONGEST, Timing},
    },
};

/// A server that is only slow for this long keeps its connection.
const SHORTEST_PROBE: Duration = Duration::from_millis(250);

/// How many times its usual wait a PING may take while messages come.
const PROLONGED: u32 = 4;

/// After a failed connect the next one waits this long, so that many callers do not flood a server that is down.
const RECONNECT_PAUSE: Duration = Duration::from_millis(50);

/// This many connections in a row may end within `RECONNECT_PAUSE`; the next one counts as a failure, too. Each new connection
/// causes renewals of the held locks. A server or proxy that closes connections because of them would be flooded.
const MOST_SHORT_LIVED: u32 = 3;

/// Connects, and reconnects, to one server.
#[derive(Debug)]
pub(crate) struct ReconnectingConnection {
    /// The address of the server. With sentinels, they give the host and port, and only its other settings count.
    address: Address,
    /// The sentinels that know where the server is.
    sentinels: Option<Arc<Sentinels>>,
    purpose: Purpose,
    timing: Timing,
    pub(super) dispatch: PubSubDispatch,
    state: Mutex<ConnectionState>,
    round_trip: RoundTrip,
}

#[derive(Debug, Default)]
struct ConnectionState {
    current: Option<Arc<CurrentConnection>>,
    /// When the connection was made.
    since: Option<Moment>,
    /// How many connections in a row broke as soon as they were made.
    short_lived: u32,
    last_failure: Option<(Moment, Failure)>,
    connecting: Option<Arc<Connecting>>,
}

type Opened = Result<Arc<CurrentConnection>, Failure>;

/// A connection that is being made; each caller that needs it waits within its own time-out.
#[derive(Debug)]
struct Connecting {
    result: OnceLock<Opened>,
    /// Has no permits, and is closed once there is a result. It wakes its waiters in the order in which they came; tokio's `watch`
    /// wakes them in random order.
    done: Semaphore,
}

impl ReconnectingConnection {
    pub(crate) fn new(
        address: Address,
        sentinels: Option<Arc<Sentinels>>,
        purpose: Purpose,
        timing: Timing,
        dispatch: PubSubDispatch,
    ) -> Self {
        Self {
            address,
            sentinels,
            purpose,
            timing,
            dispatch,
            state: Mutex::default(),
            round_trip: RoundTrip::default(),
        }
    }

    /// A connection to the same server for another purpose.
    pub(crate) fn another(&self, purpose: Purpose, timing: Timing) -> Self {
        Self::new(
            self.address.clone(),
            self.sentinels.clone(),
            purpose,
            timing,
            self.dispatch.of_nobody(),
        )
    }

    /// A connection to the same server for finding out the user's rights: in the first database, which every user may use.
    pub(crate) fn for_rights(&self) -> Arc<Self> {
        let mut reconnecting = self.another(Purpose::OtherCommands, self.timing);
        reconnecting.address.set_database(0);
        Arc::new(reconnecting)
    }

    /// What the server reports about itself.
    pub(crate) async fn greeting(self: &Arc<Self>, within: Duration) -> Greeting {
        if let Some(greeting) = self.snapshot().and_then(|now| now.greeting.clone()) {
            return greeting;
        }
        let words = [Arg::Text("INFO"), Arg::Text("server")];
        match self.send(&[&words], within, None).await {
            Ok((_, info)) => Greeting::of_info(&reply::info(&info).unwrap_or_default()),
            _ => Greeting::default(),
        }
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// The sentinels that know where the server is; `None`: it is where the address says.
    pub(crate) fn sentinels(&self) -> Option<&Arc<Sentinels>> {
        self.sentinels.as_ref()
    }

    pub(crate) fn purpose(&self) -> Purpose {
        self.purpose
    }

    pub(crate) fn timing(&self) -> Timing {
        self.timing
    }

    pub(crate) fn round_trip(&self) -> Duration {
        self.round_trip.smoothed()
    }

    /// How long a reply may take.
    pub(crate) fn reply_within(&self) -> Duration {
        self.timing.reply_within(self.round_trip())
    }

    /// How long the reply to an acquire may take.
    pub(crate) fn acquire_within(&self, ttl: Duration) -> Duration {
        self.timing.acquire_within(self.round_trip(), ttl)
    }

    /// Sends a command and reads its reply, an error of the server included, within a time-out.
    ///
    /// `in_flight` notes the connection before the first byte leaves.
    pub(crate) async fn send(
        self: &Arc<Self>,
        words: &[&[Arg<'_>]],
        within: Duration,
        in_flight: Option<&InFlight>,
    ) -> Result<(ConnectionId, Value), Failure> {
        let one = Outgoing::One(command(words));
        let (id, answers) = self.send_all(one, within, in_flight).await?;
        let answer = answers.into_iter().next();
        Ok((id, answer.ok_or_else(|| errors::nonsense("a command"))?))
    }

    /// The commands by which locks are kept here; connects if need be.
    pub(crate) async fn capabilities(
        self: &Arc<Self>,
        within: Duration,
    ) -> Result<Capabilities, Failure> {
        let current = tokio::time::timeout(within, self.current()).await;
        let current = current.unwrap_or_else(|_| Err(errors::late(&self.address, within)))?;
        let none = || Failure::not_now("no locks are kept by this connection");
        current.capabilities.ok_or_else(none)
    }

    /// Sends the commands of `make` on the current connection, if there is one. The future returns what `read` makes of the
    /// replies, which are late after `within`. The future may be polled on any thread, and its first poll sends the commands.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future after its first poll does not take the commands back.
    pub(crate) fn send_at_once<T, R>(
        self: &Arc<Self>,
        in_flight: &InFlight,
        within: Duration,
        make: &dyn Fn(ConnectionId, Moment) -> Outgoing,
        read: R,
    ) -> Option<impl Future<Output = Result<T, Failure>> + Send + use<T, R>>
    where
        R: FnOnce(Vec<Value>, ConnectionId, Moment) -> Result<T, Failure> + Send,
    {
        let current = self.snapshot();
        // Without scripts, an acquire takes more than one request.
        let ready = current.filter(|current| current.capabilities == Some(Capabilities::Scripts));
        let connection = &ready?.connection;
        let (reconnecting, id, sent) = (self.clone(), connection.id, CLOCK.now());
        in_flight.note_sent_on(id);
        let until = sent.after(within);
        let request = connection.request(make(id, sent), Some(until));
        Some(async move {
            let answers = request.await;
            let values = reconnecting.take_in(id, sent, within, answers)?;
            read(values, id, sent)
        })
    }

    /// Takes the replies to a request, and notes what they show about the connection.
    fn take_in(
        &self,
        id: ConnectionId,
        sent: Moment,
        within: Duration,
        answers: Result<Vec<Value>, NoReply>,
    ) -> Result<Vec<Value>, Failure> {
        let values = answers.map_err(|none| {
            if !matches!(none, NoReply::Late | NoReply::NotSent) {
                // The driver does the same, but perhaps only after the caller has tried again.
                self.forget(id);
            }
            errors::no_value(&none, &self.address, within)
        })?;
        self.round_trip.note(CLOCK.now().since(sent));
        self.check_for_demotion(id, &values);
        Ok(values)
    }

    /// Sends several commands in one message, with one time-out; one reply each.
    pub(crate) async fn send_all(
        self: &Arc<Self>,
        outgoing: Outgoing,
        within: Duration,
        in_flight: Option<&InFlight>,
    ) -> Result<(ConnectionId, Vec<Value>), Failure> {
        self.exchange(None, outgoing, within, in_flight).await
    }

    /// The same on this connection only: for the rest of a transaction, which does not exist on another connection.
    pub(crate) async fn send_all_on(
        self: &Arc<Self>,
        connection: ConnectionId,
        outgoing: Outgoing,
        within: Duration,
    ) -> Result<Vec<Value>, Failure> {
        let exchange = self.exchange(Some(connection), outgoing, within, None);
        exchange.await.map(|(_, answers)| answers)
    }

    async fn exchange(
        self: &Arc<Self>,
        only_on: Option<ConnectionId>,
        outgoing: Outgoing,
        within: Duration,
        in_flight: Option<&InFlight>,
    ) -> Result<(ConnectionId, Vec<Value>), Failure> {
        let mut used = None;
        let exchange = async {
            let connection = self.current().await?.connection.clone();
            if only_on.is_some_and(|id| id != connection.id) {
                return Err(Failure::not_now(
                    "the connection ended in the middle of a transaction",
                ));
            }
            let (id, sent) = (connection.id, CLOCK.now());
            if let Some(in_flight) = in_flight {
                in_flight.note_sent_on(id);
            }
            let request = connection.request(outgoing, None);
            used = Some(connection);
            let answers = request.await;
            Ok((id, self.take_in(id, sent, within, answers)?))
        };
        let timed = tokio::time::timeout(within, exchange).await;
        timed.unwrap_or_else(|_| {
            if let Some(connection) = used {
                self.suspect(&connection, within);
            }
            Err(errors::late(&self.address, within))
        })
    }

    /// The current connection, or a new one.
    ///
    /// # Cancel safety
    ///
    /// A task of its own makes the connection: dropping the future leaves the connection to the next caller.
    async fn current(self: &Arc<Self>) -> Opened {
        if let Some(current) = self.snapshot() {
            return Ok(current);
        }
        let connecting = self.connecting()?;
        // An error means that the semaphore is closed, so there is a result.
        drop(connecting.done.acquire().await);
        let result = connecting.result.get();
        result.expect("it is set before `done`").clone()
    }

    /// Connects in a task of its own. The first caller may be a renewal, which has less time for its reply than a connect may take.
    fn connecting(self: &Arc<Self>) -> Result<Arc<Connecting>, Failure> {
        let mut state = self.state.lock();
        if let Some((at, failure)) = &state.last_failure
            && CLOCK.now().since(*at) < RECONNECT_PAUSE
        {
            return Err(failure.clone());
        }
        if let Some(connecting) = &state.connecting {
            return Ok(connecting.clone());
        }
        let connecting = Arc::new(Connecting {
            result: OnceLock::new(),
            done: Semaphore::new(0),
        });
        state.connecting = Some(connecting.clone());
        // Not under the mutex: a runtime that ends drops the task at once, which takes the mutex.
        drop(state);
        spawn_beside(Unfinished(self.clone(), connecting.clone()).connect());
        Ok(connecting)
    }

    fn install(&self, current: CurrentConnection) -> Opened {
        let current = Arc::new(current);
        // The connection may have ended since its handshake. If that counted as a success, it would be made anew again and again
        // without a pause.
        if current.connection.has_ended() {
            return Err(Failure::not_now(format!(
                "the connection to {} broke as soon as it was made",
                self.address.shown()
            )));
        }
        let mut state = self.state.lock();
        // A thread that saw no connection may have begun to connect just after another one was installed. The earlier one carries
        // requests, so it stays.
        if let Some(earlier) = &state.current
            && !earlier.connection.has_ended()
        {
            return Ok(earlier.clone());
        }
        state.current = Some(current.clone());
        state.since = Some(CLOCK.now());
        current.connection.in_use.store(true, Ordering::Release);
        drop(state);
        tracing::debug!(server = self.address.shown(), "connected");
        // Grants may have been published while there was no subscription.
        self.dispatch.note_connected();
        Ok(current)
    }

    /// Whether grants arrive. Without a connection, they are assumed to arrive on the next one.
    pub(crate) fn has_grants(&self) -> bool {
        let state = self.state.lock();
        state.current.as_ref().is_none_or(|current| current.grants)
    }

    /// A reply did not come within `waited`: finds out whether the connection is dead, or how slow it is.
    ///
    /// The late reply itself does not show it, since its request may be dropped before the reply comes.
    pub(crate) fn suspect(self: &Arc<Self>, connection: &Arc<Connection>, waited: Duration) {
        if connection.probed.swap(true, Ordering::AcqRel) {
            return;
        }
        let (reconnecting, connection) = (Arc::downgrade(self), connection.clone());
        // The PING has as long as the reply had: a renewal of a short lease cannot wait for another whole time-out.
        let patience = waited.max(SHORTEST_PROBE).min(self.timing.command_timeout);
        spawn_beside(async move {
            let asked = CLOCK.now();
            let messages = connection.traffic.messages();
            let mut ping = pin!(connection.ask_all(&[&[Arg::Text("PING")]]));
            // Ends with the reply, with a silence, or after a minute in which only other replies come. Messages come even if
            // requests are lost on the way. They cannot be told from replies to dropped requests. So while messages come, the wait
            // is prolonged to `PROLONGED` times its length at most.
            loop {
                let since = CLOCK.now();
                let answer = timeout(patience, ping.as_mut()).await;
                let (waited, Some(reconnecting)) =
                    (CLOCK.now().since(asked), reconnecting.upgrade())
                else {
                    break;
                };
                // Everything that came on the connection counts, not only the reply to the PING.
                let has_heard = connection.traffic.heard_since(since);
                let has_messages = connection.traffic.messages() != messages;
                let most = if has_messages {
                    patience * PROLONGED
                } else {
                    LONGEST
                };
                match answer {
                    Ok(Ok(_)) if waited > patience => reconnecting.round_trip.note_late(waited),
                    Ok(_) => {}
                    Err(_) if has_heard && waited < most => continue,
                    Err(_) if has_heard && !has_messages => {}
                    Err(_) => {
                        tracing::warn!(
                            server = reconnecting.address.shown(),
                            "the connection is dead; making a new one"
                        );
                        reconnecting.forget(connection.id);
                    }
                }
                break;
            }
            connection.probed.store(false, Ordering::Release);
        });
    }

    /// Notes that a connection was given up, or has ended. Its driver calls this once.
    pub(super) fn note_left(&self, connection: &Connection) {
        self.forget(connection.id);
        if connection.in_use.load(Ordering::Acquire) {
            self.dispatch.note_disconnected();
        }
    }

    /// Never uses a connection again.
    pub(crate) fn forget(&self, id: ConnectionId) {
        self.forget_if(|current| current.connection.id == id);
    }

    /// Leaves a primary that another one has replaced.
    pub(crate) fn leave_if_replaced(&self, now: &KnownPrimary) {
        let is_replaced = |current: &mut Arc<CurrentConnection>| {
            current.found.as_ref().is_some_and(|old| now.replaces(old))
        };
        if self.forget_if(is_replaced) {
            tracing::warn!(
                server = self.address.shown(),
                "the sentinels name another primary: connecting to it"
            );
        }
    }

    fn forget_if(&self, is_meant: impl FnOnce(&mut Arc<CurrentConnection>) -> bool) -> bool {
        let mut state = self.state.lock();
        let Some(current) = state.current.take_if(is_meant) else {
            return false;
        };
        let now = CLOCK.now();
        let is_short = |since| now.since(since) < RECONNECT_PAUSE;
        state.short_lived = match state.since {
            Some(since) if is_short(since) => state.short_lived + 1,
            _ => 0,
        };
        if state.short_lived > MOST_SHORT_LIVED {
            let failure = Failure::not_now(format!(
                "connections to {} break as soon as they are made",
                self.address.shown()
            ));
            state.last_failure = Some((now, failure));
        }
        drop(state);
        // Its driver reports the end: this may be a thread of the user, in the middle of a request.
        current.connection.retire();
        true
    }

    /// Leaves a server that was demoted to a replica, since it stays one. After a pause, as after a failed connect, the next
    /// command looks for the primary again.
    fn check_for_demotion(&self, id: ConnectionId, answers: &[Value]) {
        let demoted = answers.iter().find_map(|answer| match answer {
            Value::ServerError(error) if errors::code_of(error) == "READONLY" => Some(error),
            _ => None,
        });
        if let Some(error) = demoted {
            self.forget(id);
            self.state.lock().last_failure = Some((CLOCK.now(), errors::answered(error)));
        }
    }

    /// Whether there is a connection now.
    pub(crate) fn is_up(&self) -> bool {
        self.snapshot().is_some()
    }

    /// The connection that there is now, and what is known of it.
    pub(crate) fn snapshot(&self) -> Option<Arc<CurrentConnection>> {
        let current = self.state.lock().current.clone()?;
        if !current.connection.has_ended() {
            return Some(current);
        }
        // Its driver has not reported the end yet.
        self.forget(current.connection.id);
        None
    }

    /// The connection that there is now.
    #[cfg(feature = "cluster")]
    pub(crate) fn current_id(&self) -> Option<ConnectionId> {
        self.snapshot().map(|current| current.connection.id)
    }
}

/// The task that connects. Its drop notes an end even if a resolver or a verifier of the user's client panics: then the next caller
/// connects.
struct Unfinished(Arc<ReconnectingConnection>, Arc<Connecting>);

impl Unfinished {
    async fn connect(self) {
        let reconnecting = &self.0;
        let within = reconnecting.timing.connect_timeout;
        let opened = timeout(within, opening::open(reconnecting)).await;
        let late = || Err(errors::unconnected(&reconnecting.address, within));
        let installed = opened
            .unwrap_or_else(|_| late())
            .and_then(|current| reconnecting.install(current));
        self.end(installed.map_err(|failure| match failure {
            // The settings worked before and are wrong now: a password was replaced, or a certificate expired.
            Failure::Invalid(reason) if reconnecting.state.lock().since.is_some() => {
                Failure::refused(reason.to_string())
            }
            failure => failure,
        }));
    }

    fn end(&self, result: Opened) {
        let Self(reconnecting, connecting) = self;
        let failure = result.as_ref().err().cloned();
        if connecting.result.set(result).is_ok() {
            let mut state = reconnecting.state.lock();
            state.connecting = None;
            state.last_failure = failure.map(|failure| (CLOCK.now(), failure));
            drop(state);
            connecting.done.close();
        }
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let why = "making a connection panicked, or the runtime that makes it has ended";
        self.end(Err(Failure::not_now(why)));
    }
}

impl Drop for ReconnectingConnection {
    /// Closes the connection: a node that left its cluster needs none.
    fn drop(&mut self) {
        self.forget_if(|_| true);
    }
}
