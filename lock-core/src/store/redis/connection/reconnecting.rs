//! The connection to one server, watched and replaced.
//!
//! A half-open connection looks like one on which nothing happens. So each command has a time-out; after one, a PING is sent,
//! and if nothing at all comes back within a second time-out, the connection is replaced.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::{
        Arc, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};

use tokio::sync::oneshot;

use crate::{
    runtime::{catch_panic::catch_panic, clock::Moment, executor::spawn_beside, mutex::Mutex},
    store::{
        ENDED, Failure,
        in_flight::{ConnectionId, InFlight},
        redis::{
            address::Address,
            connection::{
                CLOCK, Connection, Handler, NoReply,
                capabilities::Capabilities,
                errors,
                handshake::Purpose,
                once::Once,
                opening::{self, CurrentConnection},
                pub_sub::PubSubDispatch,
                sentinel::{KnownPrimary, Sentinels},
                wire::resp::{self, Arg, Value},
                wire::round_trip::RoundTrip,
            },
        },
        timing::Timing,
    },
};

/// A server that is only slow for this long keeps its connection.
const SHORTEST_PROBE: Duration = Duration::from_millis(250);

/// After a failed connect the next one waits this long, so that many callers do not storm a server that is down.
const RECONNECT_PAUSE: Duration = Duration::from_millis(50);

/// This many connections in a row may last no longer than that before it counts as a failure, too. Each new connection causes
/// renewals of what is held, so a server or proxy that closes connections because of them would be flooded.
const MOST_SHORT_LIVED: u32 = 3;

const FULL: &str = "the connection has ended, or takes no more commands for now";

/// Connects, and reconnects, to one server.
#[derive(Debug)]
pub(crate) struct ReconnectingConnection {
    /// With sentinels: how to talk to the server, wherever it is.
    address: Address,
    /// The sentinels that know where the server is.
    sentinels: Option<Arc<Sentinels>>,
    purpose: Purpose,
    timing: Timing,
    dispatch: PubSubDispatch,
    state: Mutex<ConnectionState>,
    round_trip: RoundTrip,
}

#[derive(Debug, Default)]
struct ConnectionState {
    current: Option<CurrentConnection>,
    /// When the connection was made.
    since: Option<Moment>,
    /// How many connections in a row broke as soon as they were made.
    short_lived: u32,
    last_failure: Option<(Moment, Failure)>,
    /// The result of the connection that is being made; each caller that needs it waits within its own time-out.
    connecting: Option<Arc<Once<Opened>>>,
}

type Opened = Result<CurrentConnection, Failure>;

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

    /// One to the same server for other commands.
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

    pub(crate) fn dispatch(&self) -> &PubSubDispatch {
        &self.dispatch
    }

    pub(crate) fn round_trip(&self) -> Duration {
        self.round_trip.smoothed()
    }

    pub(crate) fn is_near(&self) -> Arc<AtomicBool> {
        self.round_trip.is_near().clone()
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
        let write = |out: &mut Vec<u8>| resp::write_command(out, words);
        let (id, answers) = self.send_all(1, write, within, in_flight).await?;
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

    /// Sends commands on the connection that is there, if there is one; `write` appends their bytes and tells how many they are.
    /// The future gives what `read` makes of the replies, which are late after a command time-out. It may be polled anywhere.
    ///
    /// One system call for each request would cost more than the rest of a lock. So the first poll lets the other ready tasks of
    /// its runtime run and send theirs. The second poll flushes all of them: at once, or, while many others are in flight, soon.
    ///
    /// Dropping the future does not take the commands back.
    pub(crate) fn send_at_once<T, R>(
        self: &Arc<Self>,
        in_flight: &InFlight,
        write: &mut dyn FnMut(&mut Vec<u8>, ConnectionId, Moment) -> usize,
        read: R,
    ) -> Option<impl Future<Output = Result<T, Failure>> + Send + use<T, R>>
    where
        R: FnOnce(Vec<Value>, ConnectionId, Moment) -> Result<T, Failure> + Send,
    {
        let current = self.snapshot();
        // Without scripts, one lock takes more than one reply.
        let ready = current.filter(|current| current.capabilities == Some(Capabilities::Scripts));
        let connection = ready?.connection;
        let (reconnecting, id, sent) = (self.clone(), connection.id, CLOCK.now());
        let (sender, mut replies) = oneshot::channel();
        let handler: Handler = Box::new(move |answers| {
            let replies = match answers {
                Ok(values) => {
                    reconnecting.measure(CLOCK.now().since(sent));
                    reconnecting.check_for_demotion(id, &values);
                    Ok(values)
                }
                Err(NoReply::NotSent) => Err(Failure::not_now(FULL)),
                Err(none) => Err(errors::no_value(
                    &none,
                    reconnecting.address(),
                    reconnecting.timing(),
                )),
            };
            // The receiver may have been dropped.
            catch_panic(|| drop(sender.send(replies)));
        });
        let until = sent.after(self.timing.command_timeout);
        let put = connection.put(handler, Some(until), |out| {
            in_flight.note_sent_on(id);
            write(out, id, sent)
        });
        put.ok()?;
        let mut polls = 0_u8;
        Some(async move {
            let replies = poll_fn(|context| {
                if let Poll::Ready(replies) = Pin::new(&mut replies).poll(context) {
                    return Poll::Ready(replies);
                }
                polls = polls.saturating_add(1);
                match polls {
                    1 => context.waker().wake_by_ref(),
                    2 => connection.flush(),
                    _ => {}
                }
                Poll::Pending
            });
            let values = replies
                .await
                .unwrap_or_else(|_| Err(Failure::unanswered(ENDED)))?;
            read(values, id, sent)
        })
    }

    /// Sends several commands in one message, with one time-out; one reply each. `write` appends their bytes.
    pub(crate) async fn send_all(
        self: &Arc<Self>,
        count: usize,
        write: impl Fn(&mut Vec<u8>),
        within: Duration,
        in_flight: Option<&InFlight>,
    ) -> Result<(ConnectionId, Vec<Value>), Failure> {
        self.exchange(None, count, write, within, in_flight).await
    }

    /// The same on this connection or none: the rest of a transaction, which does not exist on another connection.
    pub(crate) async fn send_all_on(
        self: &Arc<Self>,
        connection: ConnectionId,
        count: usize,
        write: impl Fn(&mut Vec<u8>),
        within: Duration,
    ) -> Result<Vec<Value>, Failure> {
        let exchange = self.exchange(Some(connection), count, write, within, None);
        exchange.await.map(|(_, answers)| answers)
    }

    async fn exchange(
        self: &Arc<Self>,
        only_on: Option<ConnectionId>,
        count: usize,
        write: impl Fn(&mut Vec<u8>),
        within: Duration,
        in_flight: Option<&InFlight>,
    ) -> Result<(ConnectionId, Vec<Value>), Failure> {
        let start = CLOCK.now();
        let mut used = None;
        let exchange = async {
            let connection = self.current().await?.connection;
            if only_on.is_some_and(|id| id != connection.id) {
                return Err(Failure::not_now(
                    "the connection ended in the middle of a transaction",
                ));
            }
            used = Some(connection.clone());
            let left = CLOCK.now();
            let (sender, answers) = oneshot::channel();
            let handler: Handler = Box::new(move |values| drop(sender.send(values)));
            let put = connection.put(handler, None, |out| {
                if let Some(in_flight) = in_flight {
                    in_flight.note_sent_on(connection.id);
                }
                write(out);
                count
            });
            if put.is_err() {
                return Err(Failure::not_now(FULL));
            }
            connection.nudge();
            let answers = answers.await.unwrap_or(Err(NoReply::Late));
            let values =
                answers.map_err(|none| errors::no_value(&none, &self.address, self.timing))?;
            self.check_for_demotion(connection.id, &values);
            self.measure(CLOCK.now().since(left));
            Ok((connection.id, values))
        };
        let timed = tokio::time::timeout(within, exchange).await;
        timed.unwrap_or_else(|_| {
            if let Some(connection) = used {
                self.suspect(&connection, start, within);
            }
            Err(errors::late(&self.address, within))
        })
    }

    /// The current connection, or a new one.
    ///
    /// # Cancel safety
    ///
    /// A connection that is being made has no owner: dropping the future leaves it to the next caller.
    async fn current(self: &Arc<Self>) -> Result<CurrentConnection, Failure> {
        let made = {
            let mut state = self.lock();
            if let Some(current) = &state.current {
                return Ok(current.clone());
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
        made.wait()
            .await
            .unwrap_or_else(|| Err(Failure::no_answer("the runtime that connects has ended")))
    }

    /// Connects in a task of its own: the first caller may be a renewal, which has less time for its reply than a connection may
    /// take.
    fn start_connecting(self: &Arc<Self>) -> Arc<Once<Opened>> {
        let (maker, made) = Once::new();
        let reconnecting = self.clone();
        spawn_beside(async move {
            let timeout = reconnecting.timing.connect_timeout;
            let opened = tokio::time::timeout(timeout, opening::open(&reconnecting)).await;
            let result =
                opened.unwrap_or_else(|_| Err(errors::unconnected(&reconnecting.address, timeout)));
            let result = result.map(|current| reconnecting.install(current));
            let mut state = reconnecting.lock();
            state.connecting = None;
            state.last_failure = result
                .as_ref()
                .err()
                .map(|failure| (CLOCK.now(), failure.clone()));
            drop(state);
            maker.tell(result);
        });
        made
    }

    fn install(&self, current: CurrentConnection) -> CurrentConnection {
        let mut state = self.lock();
        // It may have ended between its handshake and now; its end was then reported before this state could take it in.
        if current.has_ended() {
            current.retire();
        } else {
            state.current = Some(current.clone());
            state.since = Some(CLOCK.now());
        }
        drop(state);
        tracing::debug!(server = self.address.shown(), "connected");
        // Grants may have been published while there was no subscription.
        self.dispatch.note_connected();
        current
    }

    /// Whether grants arrive; without a connection, they will on the next one as far as is known.
    pub(crate) fn has_grants(&self) -> bool {
        let state = self.lock();
        state.current.as_ref().is_none_or(|current| current.grants)
    }

    /// Nothing came back in time: finds out whether the connection is dead, unless bytes came back meanwhile.
    pub(crate) fn suspect(
        self: &Arc<Self>,
        connection: &Arc<Connection>,
        sent: Moment,
        waited: Duration,
    ) {
        if connection.heard_since(sent) || connection.probed.swap(true, Ordering::AcqRel) {
            return;
        }
        let (reconnecting, connection) = (Arc::downgrade(self), connection.clone());
        // The same time as was waited before: a renewal of a short lease cannot wait for a whole time-out more.
        let patience = waited.max(SHORTEST_PROBE).min(self.timing.command_timeout);
        spawn_beside(async move {
            let asked = CLOCK.now();
            // The connection itself notes the reply.
            drop(tokio::time::timeout(patience, connection.ask(&[Arg::Text("PING")])).await);
            connection.probed.store(false, Ordering::Release);
            if !connection.heard_since(asked)
                && let Some(reconnecting) = reconnecting.upgrade()
            {
                tracing::warn!(
                    server = reconnecting.address.shown(),
                    "the connection is dead; making a new one"
                );
                reconnecting.forget(connection.id);
            }
        });
    }

    /// Never uses a connection again.
    pub(crate) fn forget(&self, id: ConnectionId) {
        self.forget_if(|current| current.is(id));
    }

    /// Leaves a primary that another one has replaced.
    pub(crate) fn leave_if_replaced(&self, now: &KnownPrimary) {
        let is_replaced = |current: &mut CurrentConnection| {
            current.found.as_ref().is_some_and(|old| now.replaces(old))
        };
        if self.forget_if(is_replaced) {
            tracing::warn!(
                server = self.address.shown(),
                "the sentinels name another primary: connecting to it"
            );
        }
    }

    fn forget_if(&self, is_meant: impl FnOnce(&mut CurrentConnection) -> bool) -> bool {
        let mut state = self.lock();
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
        current.retire();
        self.dispatch.note_disconnected();
        true
    }

    /// A server that was demoted to a replica stays one. The next command looks the primary up again, after a pause, as after a
    /// failed connect.
    fn check_for_demotion(&self, id: ConnectionId, answers: &[Value]) {
        let demoted = answers.iter().find_map(|answer| match answer {
            Value::ServerError(error) if errors::code_of(error) == "READONLY" => Some(error),
            _ => None,
        });
        if let Some(error) = demoted {
            self.forget(id);
            self.lock().last_failure = Some((CLOCK.now(), errors::answered(error)));
        }
    }

    fn measure(&self, took: Duration) {
        self.round_trip.note(took);
    }

    /// Whether there is a connection now.
    pub(crate) fn is_up(&self) -> bool {
        self.lock().current.is_some()
    }

    /// What is known of the connection that there is now.
    pub(crate) fn snapshot(&self) -> Option<CurrentConnection> {
        self.lock().current.clone()
    }

    /// The connection that there is now.
    #[cfg(feature = "cluster")]
    pub(crate) fn current_id(&self) -> Option<ConnectionId> {
        let state = self.lock();
        state.current.as_ref().map(|current| current.connection.id)
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionState> {
        self.state.lock()
    }
}

impl Drop for ReconnectingConnection {
    /// A node that left its cluster needs no connection.
    fn drop(&mut self) {
        self.forget_if(|_| true);
    }
}
