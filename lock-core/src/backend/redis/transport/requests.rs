//! Requests to one server, on the current connection, or on a new one if there is none.

use std::{
    future::poll_fn,
    mem,
    pin::pin,
    slice,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use redis::Value;
use tokio::time::timeout;

use crate::{
    backend::{
        in_flight::{ConnectionId, InFlight},
        redis::transport::{
            CLOCK,
            capabilities::Capabilities,
            command::{Arg, Commands, command},
            connection::{Connection, CurrentConnection},
            errors,
            exchange::{Change, Compose, PartReply, Subject},
            reconnecting::ReconnectingConnection,
            traffic::NoReply,
        },
    },
    failure::Failure,
    moment::Moment,
};

/// The current connection. The futures of its requests may be polled on any thread, and the first poll sends the request.
///
/// # Cancel safety
///
/// Dropping the future of a request after its first poll does not take the commands back.
#[derive(Clone)]
pub(crate) struct Ready {
    pub(crate) reconnecting: Arc<ReconnectingConnection>,
    pub(crate) current: Arc<CurrentConnection>,
    /// `true` if replies are verified to match their requests, because one was late elsewhere and others may have been
    /// lost, too.
    is_verifying: bool,
}

impl Ready {
    pub(crate) fn new(
        reconnecting: Arc<ReconnectingConnection>,
        current: Arc<CurrentConnection>,
    ) -> Self {
        Self {
            reconnecting,
            current,
            is_verifying: false,
        }
    }

    pub(crate) fn id(&self) -> ConnectionId {
        self.current.connection.id
    }

    /// Verifies that each reply matches its request.
    pub(crate) fn verifying(self) -> Self {
        Self {
            is_verifying: true,
            ..self
        }
    }

    /// Returns the commands available for locks.
    ///
    /// # Errors
    /// Fails if this connection is not for locks.
    pub(crate) fn capabilities(&self) -> Result<Capabilities, Failure> {
        let none = || Failure::not_now("this connection is not for locks");
        self.current.known.capabilities.ok_or_else(none)
    }

    /// Ends the connection if the reply that was read has the wrong form.
    pub(crate) fn expect_its_form<T>(&self, read: &Result<T, Failure>) {
        self.reconnecting.expect_its_form(self.id(), read);
    }

    /// Sends a command, whose reply counts as late after `within`.
    pub(crate) async fn one(
        &self,
        command: Commands,
        in_flight: &InFlight,
        within: Duration,
    ) -> Result<Value, Failure> {
        let mut replies = self.several(command, in_flight, within).await?;
        replies.pop().ok_or_else(|| errors::nonsense("a command"))
    }

    /// Sends several commands in one message. Their replies count as late after `within`.
    pub(crate) async fn several<'a>(
        &self,
        commands: Commands,
        in_flight: impl Into<Option<&'a InFlight>>,
        within: Duration,
    ) -> Result<Vec<Value>, Failure> {
        let (connection, sent) = (&*self.current.connection, CLOCK.now());
        let until = Some(sent.after(within));
        let mut replies = pin!(connection.several(commands, in_flight.into(), until));
        let mut is_verifying = self.is_verifying;
        let replies = poll_fn(|context| {
            let polled = replies.as_mut().poll(context);
            // Sent after the request, which the first poll has queued.
            if polled.is_pending() && mem::take(&mut is_verifying) {
                connection.probe();
            }
            polled
        });
        self.reconnecting
            .accept(connection, sent, within, replies.await, Vec::as_slice)
    }

    /// Sends a request that may share a message with those of other tasks, and whose reply counts as late after `within`.
    pub(crate) async fn part(
        &self,
        subject: Arc<dyn Subject>,
        change: Change,
        composer: &Arc<dyn Compose>,
        in_flight: &InFlight,
        within: Duration,
    ) -> Result<PartReply, Failure> {
        let (connection, sent) = (&*self.current.connection, CLOCK.now());
        let until = Some(sent.after(within));
        let reply = connection
            .part(subject, change, composer, in_flight, until)
            .await;
        self.reconnecting
            .accept(connection, sent, within, reply, |reply| {
                slice::from_ref(&reply.value)
            })
    }
}

impl ReconnectingConnection {
    /// Returns the current connection, for a request that is sent at once.
    pub(crate) fn ready(self: &Arc<Self>) -> Option<Ready> {
        Some(Ready::new(self.clone(), self.snapshot()?))
    }

    /// Returns the current connection, or the next one. Runs on the manager's thread.
    pub(crate) async fn ready_within(self: &Arc<Self>, within: Duration) -> Result<Ready, Failure> {
        let current = timeout(within, self.current()).await;
        let late = || Err(errors::late(self.address(), within));
        let current = current.unwrap_or_else(|_| late())?;
        Ok(Ready::new(self.clone(), current))
    }

    /// Sends a command and reads its reply, which may be an error from the server, within a time-out. Connects if
    /// necessary.
    ///
    /// The connection is recorded in `in_flight` before the first byte leaves.
    pub(crate) async fn send(
        self: &Arc<Self>,
        words: &[&[Arg<'_>]],
        within: Duration,
        in_flight: Option<&InFlight>,
    ) -> Result<(ConnectionId, Value), Failure> {
        let (id, mut replies) = self.send_all(command(words), within, in_flight).await?;
        let reply = replies.pop();
        Ok((id, reply.ok_or_else(|| errors::nonsense("a command"))?))
    }

    /// Sends several commands in one message, within one time-out. Returns one reply for each.
    pub(crate) async fn send_all(
        self: &Arc<Self>,
        commands: Commands,
        within: Duration,
        in_flight: Option<&InFlight>,
    ) -> Result<(ConnectionId, Vec<Value>), Failure> {
        self.send_all_on(None, commands, within, in_flight).await
    }

    /// Like [`send_all`](Self::send_all), but only on the given connection, if there is one: for the rest of a transaction,
    /// which does not exist on another connection.
    pub(crate) async fn send_all_on(
        self: &Arc<Self>,
        only_on: Option<ConnectionId>,
        commands: Commands,
        within: Duration,
        in_flight: Option<&InFlight>,
    ) -> Result<(ConnectionId, Vec<Value>), Failure> {
        let (ready, left) = if let Some(ready) = self.ready() {
            (ready, within)
        } else {
            let started = CLOCK.now();
            let ready = self.ready_within(within).await?;
            (ready, within.saturating_sub(CLOCK.now().since(started)))
        };
        if only_on.is_some_and(|id| id != ready.id()) {
            return Err(Failure::not_now(
                "the connection ended in the middle of a transaction",
            ));
        }
        // Boxed here, because a future that contains another one by value has twice its size, at each level.
        let replies = Box::pin(ready.several(commands, in_flight, left)).await?;
        Ok((ready.id(), replies))
    }

    /// Accepts the replies to a request, and notes what they show about the connection.
    fn accept<T>(
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
                if let NoReply::Late = none {
                    self.note_late(connection);
                }
                if !matches!(none, NoReply::Late | NoReply::NotSent)
                    || !connection.traffic.is_usable()
                {
                    // The watch does this, too, but perhaps only after the caller has tried again.
                    self.forget(id);
                }
                return Err(errors::no_value(&none, self.address(), within));
            }
        };
        let traffic = &connection.traffic;
        traffic.note_round_trip(traffic.last_reply().since(sent));
        for reply in values(&replies) {
            // Leaves a server that was demoted to a replica, since this connection would lead to a replica from now on. After
            // the same pause as after a failed connect, the next command looks for the primary again.
            if let Value::ServerError(error) = reply
                && errors::code_of(error) == "READONLY"
            {
                self.forget(id);
                let failure = errors::answered(error);
                self.lifecycle.lock().failed(failure, CLOCK.now());
                break;
            }
        }
        Ok(replies)
    }

    /// Notes that a reply was late on this connection.
    fn note_late(&self, connection: &Connection) {
        if connection.session().is_none() {
            // Only a late reply shows how slow the server is.
            let least = self.timing().command_timeout;
            connection.traffic.note_late_round_trip(least);
        }
        // A server that was stopped claims to be the primary when it resumes, even if it was replaced in the meantime.
        if let Some(sentinels) = self.sentinels() {
            sentinels.doubted().notify_one();
        }
    }

    /// Returns the smoothed round-trip time. Zero if not known.
    pub(crate) fn round_trip(&self) -> Duration {
        let nanos = self.round_trip.load(Ordering::Relaxed);
        Duration::from_nanos(nanos)
    }

    /// Returns how long a reply may take.
    pub(crate) fn reply_within(&self) -> Duration {
        self.timing().reply_within(self.round_trip())
    }

    /// Returns how long the reply to an acquire may take.
    pub(crate) fn acquire_within(&self, ttl: Duration) -> Duration {
        self.timing().acquire_within(self.round_trip(), ttl)
    }
}
