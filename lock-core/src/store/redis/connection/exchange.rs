//! Requests on the current connection to a server, and what their replies show about that connection.
//!
//! Messages do not keep a connection alive: they also come where only requests are lost. So the PING that decides is waited for
//! four times as long as a reply, and no longer. Rejected: to compare the number of reads with that of messages, and so find
//! replies to dropped requests. A message may take two reads.

use std::{
    pin::pin,
    slice,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use redis::{Cmd, Pipeline, Value, aio::MultiplexedConnection};
use tokio::time::timeout;

use crate::{
    runtime::{clock::Moment, executor::spawn_beside},
    store::{
        Failure,
        in_flight::{ConnectionId, InFlight},
        redis::connection::{
            CLOCK, Connection, errors,
            handshake::CurrentConnection,
            reconnecting::ReconnectingConnection,
            shared_driver::gathering::{Compose, MessagePart, PartReply},
            wire::{
                command::{Arg, command, in_one_message},
                traffic::NoReply,
            },
        },
        timing::LONGEST,
    },
};

/// A server that is only slow for this long keeps its connection.
const SHORTEST_PROBE: Duration = Duration::from_millis(250);

/// How many times its usual wait a PING may take while messages come.
const PROLONGED: u32 = 4;

/// The connection that there is now, for a request that one message and one reply are enough for. The futures may be polled on any
/// thread. Their first poll sends the commands.
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

    /// Sends a command, of which the reply is late after `within`.
    pub(crate) async fn one(
        &self,
        command: Cmd,
        in_flight: &InFlight,
        within: Duration,
    ) -> Result<Value, Failure> {
        let command = in_one_message([command]);
        let mut replies = self.several(&command, in_flight, within).await?;
        replies.pop().ok_or_else(|| errors::nonsense("a command"))
    }

    /// Sends commands in one message, of which the replies are late after `within`.
    pub(crate) async fn several(
        &self,
        commands: &Pipeline,
        in_flight: &InFlight,
        within: Duration,
    ) -> Result<Vec<Value>, Failure> {
        let (connection, sent) = (&*self.current.connection, CLOCK.now());
        in_flight.note_sent_on(connection.id);
        let until = Some(sent.after(within));
        let replies = connection.several(commands, sent, until).await;
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
        in_flight.note_sent_on(connection.id);
        let counted = connection.traffic.begin(sent);
        let reply = match connection.shared.as_ref().zip(counted) {
            None => Err(NoReply::NotSent),
            Some((shared, _counted)) => {
                let compose = || compose(connection.handle.clone());
                let joining = pin!(shared.gathering.join(part, compose));
                connection.reply(joining, Some(sent.after(within))).await
            }
        };
        let reconnecting = &self.reconnecting;
        reconnecting.take_in(connection, sent, within, reply, |reply| {
            slice::from_ref(&reply.value)
        })
    }

    /// Whether so many requests are in flight that those for free locks leave in one message.
    pub(crate) fn is_crowded(&self) -> bool {
        self.current.connection.is_crowded()
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

    /// Sends a command and reads its reply, an error of the server included, within a time-out.
    ///
    /// `in_flight` notes the connection before the first byte leaves.
    pub(crate) async fn send(
        self: &Arc<Self>,
        words: &[&[Arg<'_>]],
        within: Duration,
        in_flight: Option<&InFlight>,
    ) -> Result<(ConnectionId, Value), Failure> {
        let one = in_one_message([command(words)]);
        let (id, mut replies) = self.send_all(one, within, in_flight).await?;
        let reply = replies.pop();
        Ok((id, reply.ok_or_else(|| errors::nonsense("a command"))?))
    }

    /// Takes the replies to a request, and notes what they show about the connection.
    fn take_in<T>(
        &self,
        connection: &Connection,
        sent: Moment,
        within: Duration,
        replies: Result<T, NoReply>,
        values: impl FnOnce(&T) -> &[Value],
    ) -> Result<T, Failure> {
        let id = connection.id;
        let replies = replies.map_err(|none| {
            if !matches!(none, NoReply::Late | NoReply::NotSent) {
                // The driver does the same, but perhaps only after the caller has tried again.
                self.forget(id);
            }
            errors::no_value(&none, self.address(), within)
        })?;
        self.round_trip
            .note(connection.traffic.last_bytes().since(sent));
        self.check_for_demotion(id, values(&replies));
        Ok(replies)
    }

    /// Sends several commands in one message, with one time-out; one reply each.
    pub(crate) async fn send_all(
        self: &Arc<Self>,
        commands: Pipeline,
        within: Duration,
        in_flight: Option<&InFlight>,
    ) -> Result<(ConnectionId, Vec<Value>), Failure> {
        self.exchange(None, commands, within, in_flight).await
    }

    /// The same on this connection only: for the rest of a transaction, which does not exist on another connection.
    pub(crate) async fn send_all_on(
        self: &Arc<Self>,
        connection: ConnectionId,
        commands: Pipeline,
        within: Duration,
    ) -> Result<Vec<Value>, Failure> {
        let exchange = self.exchange(Some(connection), commands, within, None);
        exchange.await.map(|(_, replies)| replies)
    }

    async fn exchange(
        self: &Arc<Self>,
        only_on: Option<ConnectionId>,
        commands: Pipeline,
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
            let connection = used.insert(connection);
            // Boxed here: a future that contains another one by value has twice the size of the inner one, at each level.
            let replies = Box::pin(connection.several(&commands, sent, None)).await;
            let replies = self.take_in(connection, sent, within, replies, Vec::as_slice)?;
            Ok((id, replies))
        };
        let timed = tokio::time::timeout(within, exchange).await;
        timed.unwrap_or_else(|_| {
            if let Some(connection) = used {
                self.suspect(&connection, within);
            }
            Err(errors::late(self.address(), within))
        })
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
        let patience = waited
            .max(SHORTEST_PROBE)
            .min(self.timing().command_timeout);
        spawn_beside(async move {
            let asked = CLOCK.now();
            let messages = connection.traffic.messages();
            let mut ping = pin!(connection.ask_all(&[&[Arg::Text("PING")]]));
            // Ends with the reply, with a silence, or after a minute in which only other replies come. Messages come even if
            // requests are lost on the way. They cannot be distinguished from replies to dropped requests. So while messages come, the wait
            // is prolonged to `PROLONGED` times its length at most.
            loop {
                let since = CLOCK.now();
                let reply = timeout(patience, ping.as_mut()).await;
                let (waited, Some(reconnecting)) =
                    (CLOCK.now().since(asked), reconnecting.upgrade())
                else {
                    break;
                };
                // Everything that came on the connection counts, not only the reply to the PING.
                let has_bytes = connection.traffic.last_bytes() >= since;
                let has_messages = connection.traffic.messages() != messages;
                let most = if has_messages {
                    patience * PROLONGED
                } else {
                    LONGEST
                };
                match reply {
                    Ok(Ok(_)) if waited > patience => reconnecting.round_trip.note_late(waited),
                    Ok(_) => {}
                    Err(_) if has_bytes && waited < most => continue,
                    Err(_) if has_bytes && !has_messages => {}
                    Err(_) => {
                        tracing::warn!(
                            server = reconnecting.address().shown(),
                            "the connection is dead; making a new one"
                        );
                        reconnecting.forget(connection.id);
                    }
                }
                // A server that was stopped says that it is the primary when it goes on, even if it was replaced meanwhile.
                if let Some(sentinels) = reconnecting.sentinels() {
                    sentinels.doubted().notify_one();
                }
                break;
            }
            connection.probed.store(false, Ordering::Release);
        });
    }

    /// Leaves a server that was demoted to a replica, since it stays one. After a pause, as after a failed connect, the next
    /// command looks for the primary again.
    fn check_for_demotion(&self, id: ConnectionId, replies: &[Value]) {
        let demoted = replies.iter().find_map(|reply| match reply {
            Value::ServerError(error) if errors::code_of(error) == "READONLY" => Some(error),
            _ => None,
        });
        if let Some(error) = demoted {
            self.forget(id);
            let failure = errors::answered(error);
            self.session.lock().failed(failure, CLOCK.now());
        }
    }
}
