//! One connection: a handle and a driver of the crate `redis`, watched from outside.
//!
//! The handle puts requests into a queue; the driver writes them in their order and assigns the replies. The driver runs on the
//! manager's thread, or is shared (`shared_driver/`). A request is a future that may be polled anywhere. The rest of this crate
//! relies on the facts below. The crate `redis` does not document them, so the tests in `crate_facts.rs` hold them:
//!
//! - A handle has one socket for its whole life. It never reconnects, and sends nothing twice.
//! - Requests leave in the order in which their futures were first polled, as long as the queue has room. Requests that wait for
//!   room may overtake each other. So a request that must arrive behind another one is sent after the other's reply, or is
//!   repeated.
//! - If the future of a request is dropped before the driver took the request, the request never leaves. If the future is dropped
//!   later, the request is executed, and requests sent after the drop arrive behind it. A request that shares a message with those
//!   of other tasks leaves as long as one of them is waited for (`shared_driver/gathering.rs`).
//! - After the waker of a request has panicked, the driver can still be polled.
//!
//! Not used are the crate's `ConnectionManager`, and its clients for clusters and sentinels. They replace connections and send
//! again behind one handle. A clean-up then cannot follow its acquire on the same connection.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    sync::{Arc, atomic::AtomicBool},
    task::{Poll, ready},
    time::Duration,
};

use redis::{Pipeline, RedisResult, Value, aio::MultiplexedConnection};
use tokio::{
    task::coop::unconstrained,
    time::{MissedTickBehavior, interval},
};

use crate::{
    backend::{
        in_flight::{ConnectionId, InFlight},
        redis::transport::{
            command::{Arg, command, in_one_message},
            shared_driver::{Driver, SharedDriver, Shielded, gathering::Queueing},
            traffic::{NoReply, Traffic},
        },
    },
    moment::Moment,
    runtime::{catch_panic::catch_panic, clock::Clock},
};

pub(crate) mod address;
mod authentication;
mod byte_stream;
pub(crate) mod capabilities;
pub(crate) mod command;
pub(crate) mod connection_events;
#[cfg(all(test, unix))]
mod crate_facts;
pub(crate) mod errors;
mod exchange;
pub(crate) mod handshake;
pub(crate) mod known_primary;
mod opening;
pub(crate) mod ready;
pub(crate) mod reconnecting;
pub(crate) mod redirect;
pub(crate) mod reply;
mod session;
pub(crate) mod shared_driver;
mod shared_socket;
mod stream;
#[cfg(feature = "tls")]
mod tls;
mod traffic;

pub(super) const CLOCK: Clock = Clock::Boot;

#[derive(Debug)]
pub(crate) struct Connection {
    pub(super) id: ConnectionId,
    /// Each request has a clone.
    handle: MultiplexedConnection,
    pub(crate) traffic: Arc<Traffic>,
    /// `None` if the driver runs on the manager's thread.
    shared: Option<Arc<SharedDriver>>,
    /// Whether a PING is in flight that decides whether the connection is dead.
    pub(super) probed: AtomicBool,
    /// Whether requests may use the connection. The end of an unused connection is not reported.
    pub(super) in_use: AtomicBool,
}

impl Connection {
    pub(super) fn new(handle: MultiplexedConnection, traffic: Arc<Traffic>) -> Self {
        Self {
            id: ConnectionId::next(),
            handle,
            traffic,
            shared: None,
            probed: AtomicBool::new(false),
            in_use: AtomicBool::new(false),
        }
    }

    /// Has requests poll this driver themselves.
    pub(super) fn sharing(mut self, driver: Arc<SharedDriver>) -> Self {
        self.shared = Some(driver);
        self
    }

    /// Sends commands in one message, and waits for their replies, one for each: see [`reply`](Self::reply).
    pub(super) async fn several(
        &self,
        commands: &Pipeline,
        in_flight: Option<&InFlight>,
        sent: Moment,
        until: Option<Moment>,
    ) -> Result<Vec<Value>, NoReply> {
        let mut handle = self.behind_messages();
        let replies = pin!(handle.send_packed_commands(commands, 0, commands.len()));
        self.reply(replies, in_flight, sent, until).await
    }

    /// Sends one or more commands in one message and waits for their replies, without a time-out of its own.
    pub(super) async fn ask_all(&self, commands: &[&[Arg<'_>]]) -> Result<Vec<Value>, NoReply> {
        let commands = in_one_message(commands.iter().map(|words| command(&[words])));
        self.several(&commands, None, CLOCK.now(), None).await
    }

    /// The handle for a request that leaves alone. It may have to arrive behind one that has joined a message.
    pub(super) fn behind_messages(&self) -> MultiplexedConnection {
        if let Some(shared) = &self.shared {
            shared.gathering.leave();
        }
        self.handle.clone()
    }

    /// Waits for the reply to a request, which leaves when this future is first polled, on any thread.
    ///
    /// If no reply has come at `until`, the result is [`NoReply::Late`], at most an eighth of a command time-out later. The timer is the
    /// driver's tick, so the future contains nothing of the caller's runtime.
    ///
    /// The end of the connection does not always end the crate's future. The driver of a user's own client may run for ever. And a
    /// request that reaches the queue while another thread drops the driver is lost: no side sees it any more.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before its first poll, nothing is sent. If it is dropped later, the commands may be executed. On a shared
    /// driver they leave all the same, unless the driver has not taken them from the queue by then.
    pub(super) async fn reply<T>(
        &self,
        mut reply: Pin<&mut impl Future<Output = RedisResult<T>>>,
        in_flight: Option<&InFlight>,
        sent: Moment,
        until: Option<Moment>,
    ) -> Result<T, NoReply> {
        let traffic = &*self.traffic;
        let _counted = traffic.begin(sent).ok_or(NoReply::NotSent)?;
        // Before the first poll, in which the request may leave.
        if let Some(in_flight) = in_flight {
            in_flight.note_sent_on(self.id);
        }
        // Each is made before the connection is checked: the tick that follows its end wakes those that exist by then.
        let mut tick = pin!(traffic.tick.notified());
        let (mut sends_to, mut seen_to) = (self.shared.as_ref(), None);
        // The request leaves even if the task has used up its budget of tokio.
        let replied = unconstrained(poll_fn(|context| {
            drop(seen_to.take());
            let polled = if let Some(shared) = sends_to {
                shared.ensure_reader();
                let _queueing = Queueing::begin();
                reply.as_mut().poll(context)
            } else {
                reply.as_mut().poll(context)
            };
            if let Poll::Ready(reply) = polled {
                return Poll::Ready(Ok(reply));
            }
            if let Some(shared) = sends_to.take() {
                seen_to = shared.see_to(traffic.in_flight(), context.waker());
            }
            // Bounded by the end of the connection, and by `until`.
            loop {
                if let Some(why) = traffic.ended() {
                    // The last thing that came may be this reply.
                    return Poll::Ready(match reply.as_mut().poll(context) {
                        Poll::Ready(reply) => Ok(reply),
                        Poll::Pending => Err(why),
                    });
                }
                ready!(tick.as_mut().poll(context));
                tick.set(traffic.tick.notified());
                if until.is_some_and(|until| CLOCK.now() >= until) {
                    traffic.note_late();
                    return Poll::Ready(Err(NoReply::Late));
                }
            }
        }));
        match replied.await? {
            Ok(reply) => {
                if self.shared.is_none() {
                    // On a client of the user's. A stream of ours notices the bytes themselves.
                    traffic.note_bytes();
                }
                traffic.note_complete();
                Ok(reply)
            }
            // The stream of a shared driver notes why it ends. Without a reason, the driver has ended by itself: what came is no reply.
            Err(_) => Err(traffic.ended().unwrap_or_else(|| match self.shared {
                Some(_) => NoReply::Nonsense,
                None => NoReply::Broken("the connection has ended".into()),
            })),
        }
    }

    /// Passes a reply on once it is certain that it is the reply to this request.
    ///
    /// If a peer loses replies and keeps the connection, each later reply is taken for that of an earlier request, and may look right:
    /// the `OK` to one `SET` is that to another. So after a time-out, no reply counts before the one to a later PING is in its place.
    /// That comes right after the replies of a server that was only slow. A time-out after this reply came says nothing about its place.
    ///
    /// # Cancel safety
    ///
    /// Nothing is left behind: the reply is lost, as if the future had been dropped before it came.
    pub(super) async fn in_its_place<T>(
        &self,
        replied: Result<T, NoReply>,
        until: Option<Moment>,
    ) -> Result<T, NoReply> {
        let reply = replied?;
        let traffic = &*self.traffic;
        let Some(doubts) = traffic.open_doubts() else {
            return Ok(reply);
        };
        // Bounded by the PING, which is answered or ends the connection, and by `until`.
        loop {
            // Made before the look, so that it is not missed.
            let tick = traffic.tick.notified();
            if traffic.are_settled(doubts) {
                return Ok(reply);
            }
            if !traffic.is_usable() {
                return Err(traffic.ended().unwrap_or(NoReply::Late));
            }
            if until.is_some_and(|until| CLOCK.now() >= until) {
                return Err(NoReply::Late);
            }
            tick.await;
        }
    }

    /// The replies are not in their places: ends the connection, and all requests on it, as if it had broken.
    pub(super) fn end_misplaced(&self) {
        self.traffic.doubt();
        let why = "a reply has the wrong form, so replies were lost on the way";
        self.traffic.end(NoReply::Broken(why.into()));
        self.traffic.retire();
        catch_panic(|| self.traffic.tick.notify_waiters());
    }

    /// Polls the crate's driver until the connection is over.
    ///
    /// `silent` is called after a reply was late, and while requests are in flight and nothing came for `patience`. `left` is
    /// called once, as soon as nothing more is sent on this connection.
    pub(super) async fn drive(
        &self,
        driver: Driver,
        patience: Duration,
        silent: impl Fn() + Send,
        left: impl Fn() + Send,
    ) {
        let (mut driver, mut tick) = (Shielded::new(driver), interval(patience / 8));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut retired = None::<Moment>;
        loop {
            tokio::select! {
                biased;
                () = &mut driver => break,
                () = self.traffic.retired.notified() => {
                    if retired.is_none() {
                        retired = Some(CLOCK.now());
                        left();
                    }
                }
                _ = tick.tick() => {
                    catch_panic(|| self.traffic.tick.notify_waiters());
                    if self.traffic.is_silent(patience) {
                        silent();
                    }
                }
            }
            let is_idle = self.traffic.in_flight() == 0;
            if retired.is_some_and(|retired| is_idle || CLOCK.now() >= retired.after(patience)) {
                break;
            }
        }
        if retired.is_some() {
            let why = "the connection was given up";
            self.traffic.end(NoReply::Broken(why.into()));
        } else {
            // The first reason counts: if the stream ended, its reason was noted before.
            self.traffic.end(NoReply::Nonsense);
            left();
        }
        // Both calls wake tasks of users' executors, and a waker may panic. The tick ends requests on a user's own client, of which
        // the driver may still run.
        catch_panic(|| drop(driver));
        catch_panic(|| self.traffic.tick.notify_waiters());
    }
}

#[cfg(test)]
mod tests {
    use redis::{AsyncConnectionConfig, RedisConnectionInfo};
    use tokio::io::DuplexStream;

    use super::*;
    use crate::backend::redis::transport::{stream::Watched, traffic::Traffic};

    /// Far longer than any step here takes.
    const HANG: Duration = Duration::from_secs(30);

    /// A connection whose driver is gone, and the server's end.
    async fn undriven() -> (Connection, DuplexStream) {
        let (ours, server) = tokio::io::duplex(64);
        let traffic = Arc::<Traffic>::default();
        let stream = Watched::new(Box::new(ours), traffic.clone());
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let info = RedisConnectionInfo::default().set_skip_set_lib_name();
        let made = MultiplexedConnection::new_with_config(&info, stream, config).await;
        let (handle, _) = made.expect("nothing is sent in a greeting");
        (Connection::new(handle, traffic), server)
    }

    /// A request that the connection's end does not end, since the driver is gone or belongs to another runtime.
    async fn ends(connection: &Connection, first_poll: impl FnOnce()) {
        let mut first_poll = Some(first_poll);
        let reply = pin!(poll_fn(|_| -> Poll<RedisResult<()>> {
            if let Some(first_poll) = first_poll.take() {
                first_poll();
            }
            Poll::Pending
        }));
        let request = tokio::time::timeout(HANG, connection.reply(reply, None, CLOCK.now(), None));
        let ended = request.await.expect("it waits for no later tick");
        assert!(matches!(ended, Err(NoReply::Nonsense)), "{ended:?}");
    }

    fn end(connection: &Connection) {
        connection.traffic.end(NoReply::Nonsense);
        connection.traffic.tick.notify_waiters();
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_on_a_connection_that_has_ended_has_a_result() {
        let (connection, _server) = undriven().await;
        end(&connection);
        ends(&connection, || {}).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_does_not_leave_is_not_noted_as_sent() {
        let (connection, _server) = undriven().await;
        connection.traffic.retire();
        let (in_flight, reply) = (InFlight::default(), pin!(std::future::pending()));
        let sent = connection.reply::<()>(reply, Some(&in_flight), CLOCK.now(), None);
        assert!(matches!(sent.await, Err(NoReply::NotSent)));
        assert!(in_flight.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_sent_while_another_thread_ends_the_connection_has_a_result() {
        let (connection, _server) = undriven().await;
        ends(&connection, || end(&connection)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_reply_that_came_just_before_the_end_of_its_connection_counts() {
        let ((connection, _server), mut polls) = (undriven().await, 0);
        let reply = pin!(poll_fn(|_| {
            polls += 1;
            if polls > 1 {
                return Poll::Ready(Ok("the reply"));
            }
            end(&connection);
            Poll::Pending
        }));
        let replied = connection.reply(reply, None, CLOCK.now(), None).await;
        assert!(matches!(replied, Ok("the reply")), "{replied:?}");
    }
}
