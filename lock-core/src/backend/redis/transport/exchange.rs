//! Requests that connect if need be, on the manager's thread, and what a missing reply shows about the connection.
//!
//! Messages do not keep a connection alive: they also come where only requests are lost. So the PING that decides is waited for
//! four times as long as a reply, and no longer. Rejected: to compare the number of reads with that of messages, and so find
//! replies to dropped requests. A message may take two reads.

use std::{
    pin::pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use redis::{Pipeline, Value};
use tokio::time::timeout;

use crate::{
    backend::{
        in_flight::{ConnectionId, InFlight},
        redis::transport::{
            CLOCK, Connection,
            command::{Arg, command, in_one_message},
            errors,
            reconnecting::ReconnectingConnection,
        },
        timing::LONGEST,
    },
    failure::Failure,
    runtime::{catch_panic::catch_panic, executor::spawn_beside},
};

/// A server that is only slow for this long keeps its connection.
const SHORTEST_PROBE: Duration = Duration::from_millis(250);

/// How many times its usual wait a PING may take while messages come.
const PROLONGED: u32 = 4;

/// How many replies may have been lost, so that the first further replies show it.
const FILLERS: usize = 64;

impl ReconnectingConnection {
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

    /// Sends several commands in one message, with one time-out; one reply each.
    pub(crate) async fn send_all(
        self: &Arc<Self>,
        commands: Pipeline,
        within: Duration,
        in_flight: Option<&InFlight>,
    ) -> Result<(ConnectionId, Vec<Value>), Failure> {
        self.send_all_on(None, commands, within, in_flight).await
    }

    /// The same on one connection only, if it is given: for the rest of a transaction, which does not exist on another connection.
    pub(crate) async fn send_all_on(
        self: &Arc<Self>,
        only_on: Option<ConnectionId>,
        commands: Pipeline,
        within: Duration,
        in_flight: Option<&InFlight>,
    ) -> Result<(ConnectionId, Vec<Value>), Failure> {
        let (mut used, mut has_replied) = (None, false);
        let exchange = async {
            let connection = self.current().await?.connection.clone();
            if only_on.is_some_and(|id| id != connection.id) {
                return Err(Failure::not_now(
                    "the connection ended in the middle of a transaction",
                ));
            }
            let (id, sent) = (connection.id, CLOCK.now());
            let connection = used.insert(connection);
            // Boxed here: a future that contains another one by value has twice the size of the inner one, at each level.
            let replies = Box::pin(connection.several(&commands, in_flight, sent, None)).await;
            has_replied = true;
            let replies = connection.in_its_place(replies, None).await;
            let replies = self.take_in(connection, sent, within, replies, Vec::as_slice)?;
            Ok((id, replies))
        };
        let timed = tokio::time::timeout(within, exchange).await;
        timed.unwrap_or_else(|_| {
            if let Some(connection) = used {
                if !has_replied {
                    connection.traffic.doubt();
                }
                self.suspect(&connection, within);
            }
            Err(errors::late(self.address(), within))
        })
    }

    /// A reply did not come within `waited`: finds out whether the connection is dead, or how slow it is.
    ///
    /// The late reply itself does not show it, since its request may be dropped before the reply comes.
    ///
    /// It may also have lost replies, and then continue with the next ones. The reply to the PING shows that, too.
    pub(crate) fn suspect(self: &Arc<Self>, connection: &Arc<Connection>, waited: Duration) {
        if connection.probed.swap(true, Ordering::AcqRel) {
            return;
        }
        connection.traffic.doubt();
        let (reconnecting, connection) = (Arc::downgrade(self), connection.clone());
        // The PING has as long as the reply had: a renewal of a short lease cannot wait for another whole time-out.
        let patience = waited
            .max(SHORTEST_PROBE)
            .min(self.timing().command_timeout);
        spawn_beside(async move {
            let asked = CLOCK.now();
            let messages = connection.traffic.messages();
            let doubts = connection.traffic.open_doubts().unwrap_or_default();
            // Its own text, so that the reply to another PING is not taken for its reply.
            let text = format!("lock-core:{doubts}");
            let words = [Arg::Text("PING"), Arg::Text(&text)];
            let words = [&words[..]];
            let mut ping = pin!(connection.ask_all(&words));
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
                    Ok(Ok(replies)) if !is_echo(&replies, &text) => {
                        reconnecting.end_misplaced(connection.id);
                    }
                    Ok(Ok(_)) => {
                        if waited > patience {
                            reconnecting.note_late_round_trip(waited);
                        }
                        connection.traffic.settle(doubts);
                        catch_panic(|| connection.traffic.tick.notify_waiters());
                    }
                    // It did not leave: too many requests are in flight, so the next one waits.
                    Ok(Err(_)) if connection.traffic.is_usable() => {
                        tokio::time::sleep(patience).await;
                    }
                    Ok(Err(_)) => {}
                    Err(_) if has_bytes && waited < most => {
                        // If replies were lost, the next ones are taken for theirs, and one of these for that to the PING: soon, and not
                        // after as many further requests.
                        let fillers = [&[Arg::Text("TIME")][..]; FILLERS];
                        drop(timeout(Duration::ZERO, connection.ask_all(&fillers)).await);
                        continue;
                    }
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
            // A request that left after the PING was late, too.
            if connection.traffic.is_usable()
                && connection.traffic.open_doubts().is_some()
                && let Some(reconnecting) = reconnecting.upgrade()
            {
                reconnecting.suspect(&connection, patience);
            }
        });
    }
}

/// Whether it is the reply to the PING with this text, and not to another request.
fn is_echo(replies: &[Value], text: &str) -> bool {
    matches!(replies, [Value::BulkString(echo)] if echo == text.as_bytes())
}
