//! The arguments of commands on a lock, and script calls at the location of a key.

use std::{io::Write, sync::Arc, time::Duration};

use redis::Value;

use crate::{
    backend::{
        in_flight::{ConnectionId, InFlight},
        owner_token::OwnerToken,
        redis::{
            protocol::{
                replies::of_value,
                scripts::{Call, Lua, is_unknown},
            },
            topology::{key_location::KeyLocation, sharded_subscription::GrantDelivery},
            transport::{
                CLOCK,
                command::{
                    Arg::{self, Number, Text, Written},
                    WriteWord, in_one_message, millis,
                },
                errors,
                exchange::Subject,
                reconnecting::ReconnectingConnection,
                redirect::NodeRole,
                requests::Ready,
            },
        },
    },
    engine::reply::QueueMode,
    failure::Failure,
};

impl WriteWord for OwnerToken {
    fn write_to(&self, word: &mut dyn Write) {
        self.expose_to(word);
    }
}

/// Returns the command that takes a key, unless another holder has it.
pub(crate) fn set_if_free(lock: &dyn Subject, ttl: Duration) -> [Arg<'_>; 6] {
    [
        Text("SET"),
        Text(lock.key()),
        Written(lock.value()),
        Text("NX"),
        Text("PX"),
        Number(millis(ttl)),
    ]
}

impl GrantDelivery {
    /// Returns what a request may do about a busy lock. Without grants, an entry in the queue would only be skipped.
    pub(crate) fn queue_mode(self, wanted: QueueMode) -> QueueMode {
        if self == Self::Pushed {
            wanted
        } else {
            QueueMode::DoNotQueue
        }
    }
}

impl KeyLocation {
    /// Calls a script on a connection that is ready. An error reply from the server is a value.
    pub(crate) async fn call(
        &self,
        ready: &Ready,
        script: &Lua,
        call: Call<'_>,
        in_flight: &InFlight,
        within: Duration,
    ) -> Result<Value, Failure> {
        // A node that is about to get a slot usually does not know the scripts yet.
        let mut by_text = self.node_role != NodeRole::ServesSlot;
        let mut call = call;
        // At most three times: with few keys if the slot is being moved, and with the text if the server does not know the
        // script.
        loop {
            let command = if by_text {
                script.call_by_text(call)
            } else {
                script.call(call)
            };
            let commands = in_one_message(self.asking([command]));
            let mut replies = ready.several(commands, in_flight, within).await?;
            let reply = replies.pop().ok_or_else(|| errors::nonsense("a script"))?;
            if let Some(with_few) = call.after_refused_keys(&reply) {
                call = with_few;
                continue;
            }
            if by_text || !is_unknown(&reply) {
                return Ok(reply);
            }
            by_text = true;
        }
    }

    /// Runs a script. An error reply from the server is a failure.
    pub(crate) async fn run(&self, script: &Lua, call: Call<'_>) -> Result<Value, Failure> {
        let connection = &self.server.connection;
        let within = connection.reply_within();
        let (_, reply) = (self.run_on(connection, script, call, within, None)).await?;
        of_value(reply)
    }

    /// Runs a script on one of the server's connections, within a time-out. An error reply from the server is a value.
    pub(crate) async fn run_on(
        &self,
        connection: &Arc<ReconnectingConnection>,
        script: &Lua,
        call: Call<'_>,
        within: Duration,
        in_flight: Option<&InFlight>,
    ) -> Result<(ConnectionId, Value), Failure> {
        let calls = [call];
        let ran = self.run_each(connection, script, &calls, within, in_flight);
        let (id, mut replies) = ran.await?;
        Ok((id, replies.pop().unwrap_or(Value::Nil)))
    }

    /// Runs a script once for each call, in one message. Returns one reply for each.
    pub(crate) async fn run_each(
        &self,
        connection: &Arc<ReconnectingConnection>,
        script: &Lua,
        calls: &[Call<'_>],
        within: Duration,
        in_flight: Option<&InFlight>,
    ) -> Result<(ConnectionId, Vec<Value>), Failure> {
        let (started, mut left) = (CLOCK.now(), within);
        let mut calls = calls.to_vec();
        let mut replies = vec![Value::Nil; calls.len()];
        let mut open: Vec<usize> = (0..calls.len()).collect();
        // The number of open calls that send the text. A node that is about to get a slot usually does not know the scripts
        // yet.
        let mut by_text = usize::from(self.node_role != NodeRole::ServesSlot);
        let mut last = None;
        // At most five rounds: each but the last sends a text for the first time, or more texts, or fewer keys.
        loop {
            let commands = open.iter().enumerate().map(|(number, call)| {
                if number < by_text {
                    script.call_by_text(calls[*call])
                } else {
                    script.call(calls[*call])
                }
            });
            let (id, sent) = match (self.send(connection, commands, left, in_flight).await, last) {
                (Ok(sent), _) => sent,
                // The calls that succeeded in earlier rounds count, and the refusals of the others are temporary.
                (Err(_), Some(id)) if in_flight.is_none() => return Ok((id, replies)),
                (Err(failure), _) => return Err(failure),
            };
            last = Some(id);
            for (call, reply) in open.iter().zip(sent) {
                replies[*call] = reply;
            }
            let were_texts = by_text >= open.len();
            let mut are_unknown = false;
            open.retain(|&number| {
                let reply = &replies[number];
                if let Some(with_few) = calls[number].after_refused_keys(reply) {
                    calls[number] = with_few;
                    return true;
                }
                let is_left = !were_texts && is_unknown(reply);
                are_unknown |= is_left;
                is_left
            });
            if open.is_empty() {
                return Ok((id, replies));
            }
            // The server was restarted, or its scripts were flushed. After one text, it knows the hash again, unless it refused
            // that call because the key has moved to another node, or is an endpoint in front of several shards.
            by_text = match (by_text, are_unknown) {
                (0, true) => 1,
                (0, false) => 0,
                _ => open.len(),
            };
            left = within.saturating_sub(CLOCK.now().since(started));
        }
    }
}
