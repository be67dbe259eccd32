//! Requests on the connection that there is now, for which one message and one reply are enough. Their futures may be polled on any
//! thread. The first poll sends the commands.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    slice,
    sync::{Arc, atomic::Ordering},
    task::{Poll, ready},
    time::Duration,
};

use redis::{Cmd, Pipeline, RedisResult, ServerError, Value, aio::MultiplexedConnection};
use tokio::task::coop::unconstrained;

use crate::{
    runtime::clock::Moment,
    store::{
        Failure,
        in_flight::{ConnectionId, InFlight},
        redis::connection::{
            CLOCK, Connection, CurrentConnection, DeleteIf, NoReply, ReconnectingConnection,
            errors,
            shared_driver::gathering::{CROWD, Compose, MessagePart, PartReply, Queueing},
        },
    },
};

/// The connection that there is now.
///
/// # Cancel safety
///
/// Dropping the future of a request after its first poll does not take the commands back.
pub(crate) struct Ready {
    pub(crate) reconnecting: Arc<ReconnectingConnection>,
    pub(crate) current: Arc<CurrentConnection>,
}

impl Ready {
    pub(crate) fn id(&self) -> ConnectionId {
        self.current.connection.id
    }

    /// Whether so many requests are in flight that those for free locks leave in one message.
    pub(crate) fn is_crowded(&self) -> bool {
        let connection = &self.current.connection;
        connection.shared.is_some() && CROWD.contains(&connection.traffic.in_flight())
    }

    /// Sends a command, of which the reply is late after `within`.
    pub(crate) async fn one(
        &self,
        command: Cmd,
        in_flight: &InFlight,
        within: Duration,
    ) -> Result<Value, Failure> {
        let (connection, sent) = (&*self.current.connection, CLOCK.now());
        let mut handle = connection.behind_messages();
        let reply = pin!(handle.send_packed_command(&command));
        let until = Some(sent.after(within));
        let reply = connection.reply(reply, Some(in_flight), sent, until).await;
        self.reconnecting
            .take_in(connection, sent, within, reply, slice::from_ref)
    }

    /// Sends commands in one message, of which the replies are late after `within`.
    pub(crate) async fn several(
        &self,
        commands: &Pipeline,
        in_flight: &InFlight,
        within: Duration,
    ) -> Result<Vec<Value>, Failure> {
        let (connection, sent) = (&*self.current.connection, CLOCK.now());
        let until = Some(sent.after(within));
        let replies = connection
            .several(commands, Some(in_flight), sent, until)
            .await;
        self.reconnecting
            .take_in(connection, sent, within, replies, Vec::as_slice)
    }

    /// Sends a request in a message with those of other tasks. Its reply is late after `within`. `compose` has the handle for the message.
    pub(crate) async fn gathered(
        &self,
        part: MessagePart,
        compose: impl FnOnce(MultiplexedConnection) -> Compose,
        in_flight: &InFlight,
        within: Duration,
    ) -> Result<PartReply, Failure> {
        let (connection, sent) = (&*self.current.connection, CLOCK.now());
        let reply = match &connection.shared {
            None => Err(NoReply::NotSent),
            Some(shared) => {
                let compose = || compose(connection.handle.clone());
                let joining = pin!(shared.gathering.join(part, compose));
                let until = Some(sent.after(within));
                connection
                    .reply(joining, Some(in_flight), sent, until)
                    .await
            }
        };
        self.reconnecting
            .take_in(connection, sent, within, reply, |reply| {
                slice::from_ref(&reply.value)
            })
    }
}

impl CurrentConnection {
    /// The command by which the server deletes a key that holds a value, if there is one that the user may use.
    ///
    /// The first use shows whether the user has the right to it. That takes no message, and a refusal is definite.
    pub(crate) fn delete_if(&self) -> Option<DeleteIf> {
        if self.refuses_delete_if.load(Ordering::Relaxed) {
            return None;
        }
        self.delete_if
    }

    /// Takes an error reply to that command into account.
    pub(crate) fn note_error_of_delete_if(&self, error: &ServerError) {
        if error.code() == "NOPERM" || errors::is_unknown_command(error) {
            self.refuses_delete_if.store(true, Ordering::Relaxed);
        }
    }
}

impl ReconnectingConnection {
    /// The connection that there is now, for a request that is sent at once.
    pub(crate) fn ready(self: &Arc<Self>) -> Option<Ready> {
        let current = self.snapshot()?;
        let reconnecting = self.clone();
        Some(Ready {
            reconnecting,
            current,
        })
    }

    /// Takes the replies to a request, and notes what they show about the connection.
    pub(super) fn take_in<T>(
        &self,
        connection: &Connection,
        sent: Moment,
        within: Duration,
        replies: Result<T, NoReply>,
        values: impl FnOnce(&T) -> &[Value],
    ) -> Result<T, Failure> {
        let id = connection.id;
        let replies = match replies {
            Ok(replies) => replies,
            Err(none) => {
                if !matches!(none, NoReply::Late | NoReply::NotSent) {
                    // The driver does the same, but perhaps only after the caller has tried again.
                    self.forget(id);
                }
                return Err(errors::no_value(&none, self.address(), within));
            }
        };
        self.note_round_trip(connection.traffic.last_bytes().since(sent));
        for reply in values(&replies) {
            // Leaves a server that was demoted to a replica, since it stays one. After a pause, as after a failed connect, the next
            // command looks for the primary again.
            if let Value::ServerError(error) = reply
                && errors::code_of(error) == "READONLY"
            {
                self.forget(id);
                let failure = errors::answered(error);
                self.session.lock().failed(failure, CLOCK.now());
                break;
            }
        }
        Ok(replies)
    }

    /// How long a request and its reply took lately. Zero if not known.
    pub(crate) fn round_trip(&self) -> Duration {
        Duration::from_nanos(self.round_trip.load(Ordering::Relaxed))
    }

    /// How long a reply may take.
    pub(crate) fn reply_within(&self) -> Duration {
        self.settings.timing.reply_within(self.round_trip())
    }

    /// How long the reply to an acquire may take.
    pub(crate) fn acquire_within(&self, ttl: Duration) -> Duration {
        self.settings.timing.acquire_within(self.round_trip(), ttl)
    }

    /// Notes a reply that came too late for its caller. The whole measurement counts at once, so that the next callers wait long
    /// enough.
    pub(super) fn note_late_round_trip(&self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.round_trip.fetch_max(took, Ordering::Relaxed);
    }

    /// Notes a reply in time. Each new measurement counts for an eighth, as in TCP.
    fn note_round_trip(&self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let after = match self.round_trip.load(Ordering::Relaxed) {
            0 => took,
            before => before - before / 8 + took / 8,
        };
        self.round_trip.store(after, Ordering::Relaxed);
    }
}

impl Connection {
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
}

#[cfg(test)]
mod tests {
    use redis::{AsyncConnectionConfig, RedisConnectionInfo};
    use tokio::io::DuplexStream;

    use super::*;
    use crate::store::redis::connection::wire::{stream::Watched, traffic::Traffic};

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
