//! Requests on the connection that there is now, for which one message and one reply are enough. Their futures may be polled on any
//! thread. The first poll sends the commands.

use std::{
    pin::pin,
    slice,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use redis::{Cmd, Pipeline, Value, aio::MultiplexedConnection};

use crate::{
    backend::{
        in_flight::{ConnectionId, InFlight},
        redis::transport::{
            CLOCK, Connection, errors,
            handshake::CurrentConnection,
            reconnecting::ReconnectingConnection,
            shared_driver::gathering::{CROWD, Compose, MessagePart, PartReply},
            traffic::NoReply,
        },
    },
    failure::Failure,
    moment::Moment,
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

    /// Ends the connection if the reply that was read has the wrong form.
    pub(crate) fn expect_its_form<T>(&self, read: &Result<T, Failure>) {
        self.reconnecting.expect_its_form(self.id(), read);
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
        let reply = connection.in_its_place(reply, until).await;
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
        let replies = connection.in_its_place(replies, until).await;
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
                let reply = connection.reply(joining, Some(in_flight), sent, until);
                connection.in_its_place(reply.await, until).await
            }
        };
        self.reconnecting
            .take_in(connection, sent, within, reply, |reply| {
                slice::from_ref(&reply.value)
            })
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
                if !matches!(none, NoReply::Late | NoReply::NotSent)
                    || !connection.traffic.is_usable()
                {
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
