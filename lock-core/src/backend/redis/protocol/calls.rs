//! The words of a lock in a command, and the calls of scripts at the location of a key.

use std::{io::Write, num::NonZeroU64, sync::Arc, time::Duration};

use redis::Value;

use crate::{
    backend::{
        Acquire, Release, Renew,
        in_flight::{ConnectionId, InFlight},
        owner::Entry,
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
                    Arg::{self, Bytes, Number, Spaced, Text, Written},
                    Last, WriteWord, in_one_message, millis,
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
    mode::Mode,
};

impl WriteWord for OwnerToken {
    fn write_to(&self, word: &mut dyn Write) {
        self.expose_to(word);
    }
}

/// The command that takes a key, unless another holder has it.
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

/// The keys of a lock that a request for it declares: all but the mark of processes that poll, which comes last, unless it polls itself.
/// While their slot moves, an exclusive request declares those that exist for as long as it waits for an exclusive holder: the lock, the
/// fencing clock, the queue and the beats. The other modes need more.
pub(super) fn call_of<'a>(
    keys: &'a [Arg<'a>; 8],
    arguments: &'a [Arg<'a>],
    mode: Mode,
    polls: bool,
) -> Call<'a> {
    let few = match mode {
        Mode::Exclusive => &keys[..4],
        Mode::Shared | Mode::Permits(_) | Mode::Once => &[],
    };
    let declared = if polls { keys } else { &keys[..7] };
    Call::of(declared, arguments).with_few(few)
}

impl GrantDelivery {
    /// What a request may do about a busy lock. Without grants, an entry in the queue would only be passed over.
    pub(crate) fn queue_mode(self, wanted: QueueMode) -> QueueMode {
        if self == Self::Pushed {
            wanted
        } else {
            QueueMode::DoNotQueue
        }
    }
}

impl KeyLocation {
    /// The arguments of an acquire, and how many of them count. The last one is the time for which a mark tells holders that this
    /// process polls.
    pub(crate) fn acquire_arguments<'a>(
        &'a self,
        request: &'a Acquire,
        queue_mode: QueueMode,
        mark: Duration,
    ) -> ([Arg<'a>; 7], usize) {
        let polls = request.queue_mode != QueueMode::DoNotQueue
            && queue_mode == QueueMode::DoNotQueue
            && self.delivery() == GrantDelivery::Unsupported;
        let arguments = [
            Written(&request.owner.token),
            Number(millis(request.ttl)),
            Number(request.known_fencing),
            Number(request.tokens.into()),
            match queue_mode {
                QueueMode::DoNotQueue => Text("try"),
                QueueMode::JoinQueue => Text("wait"),
                QueueMode::CheckPosition(position) => Number(position.map_or(0, NonZeroU64::get)),
            },
            self.entry(request.entry()),
            Number(millis(mark)),
        ];
        (arguments, if polls { 7 } else { 6 })
    }

    /// The arguments of a release, and how many of them count. That of a lock held alone needs no more than two.
    pub(crate) fn release_arguments<'a>(&'a self, request: &'a Release) -> ([Arg<'a>; 6], usize) {
        let has_entry = request.may_be_queued || !request.owner.mode.is_alone();
        let count = match (&request.result, has_entry, request.keep) {
            (Some(_), ..) => 6,
            (None, true, _) => 4,
            (None, false, Some(_)) => 3,
            (None, false, None) => 2,
        };
        let result = request.result.as_ref();
        let arguments = [
            Written(&request.owner.token),
            Number(request.known_fencing),
            Number(request.keep.map_or(0, millis)),
            self.entry(request.owner.entry()),
            Bytes(result.map_or(&[], |result| &result.bytes)),
            Number(result.map_or(0, |result| millis(result.keep))),
        ];
        (arguments, count)
    }

    /// The keys of a renewal, the few for a slot that moves, and the arguments. The few exist as long as the lease does, so a renewal is
    /// executed in any case. Then it takes no tokens, and lets no waiters in.
    pub(crate) fn renewal<'a>(&'a self, request: &'a Renew) -> [Vec<Arg<'a>>; 3] {
        let owner = &request.owner;
        let all = self.keys(&owner.full_key);
        let [lock, _, _, _, holders, permits, ..] = all;
        let few = match owner.mode {
            Mode::Exclusive | Mode::Once => vec![lock],
            Mode::Shared => vec![lock, holders],
            Mode::Permits(_) => vec![lock, holders, permits],
        };
        let keys = if owner.mode.is_alone() && request.tokens == 0 {
            few.clone()
        } else {
            all.to_vec()
        };
        let mut arguments = vec![Written(&owner.token), Number(millis(request.ttl))];
        let is_beside = !owner.mode.is_alone();
        if is_beside || request.tokens > 0 {
            arguments.extend([Number(request.known_fencing), Number(request.tokens.into())]);
        }
        if is_beside {
            arguments.push(self.entry(owner.entry()));
        }
        [keys, few, arguments]
    }

    /// An entry in the queue, without the owner token.
    fn entry(&self, entry: Entry) -> Arg<'_> {
        let mode = match entry.mode {
            Mode::Exclusive => Last::Letter('x'),
            Mode::Shared => Last::Letter('s'),
            Mode::Once => Last::Letter('o'),
            Mode::Permits(permits) => Last::Number(permits),
        };
        let numbers = [entry.number, millis(entry.ttl)];
        Spaced(&self.names.channel, numbers, mode)
    }

    /// Calls a script on a connection that is ready. An error reply of the server is a value.
    pub(crate) async fn call(
        &self,
        ready: &Ready,
        script: &Lua,
        call: Call<'_>,
        in_flight: &InFlight,
        within: Duration,
    ) -> Result<Value, Failure> {
        // A node that is about to get a slot mostly does not know the scripts yet.
        let mut by_text = self.node_role != NodeRole::ServesSlot;
        let mut call = call;
        // Three times at most: with few keys if the slot moves, and with the text to a server that does not know the script.
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

    /// Runs a script; an error reply of the server is a failure.
    pub(crate) async fn run(&self, script: &Lua, call: Call<'_>) -> Result<Value, Failure> {
        let connection = &self.server.connection;
        let within = connection.reply_within();
        let (_, reply) = (self.run_on(connection, script, call, within, None)).await?;
        of_value(reply)
    }

    /// The same on one of the server's connections, all within a time-out. An error reply of the server is a value.
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

    /// The same once for each call, in one message; one reply each.
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
        // How many of the open calls send the text. A node that is about to get a slot mostly does not know the scripts yet.
        let mut by_text = usize::from(self.node_role != NodeRole::ServesSlot);
        // Four rounds at most: each but the last sends a text for the first time, or more texts, or fewer keys.
        loop {
            let commands = open.iter().enumerate().map(|(number, call)| {
                if number < by_text {
                    script.call_by_text(calls[*call])
                } else {
                    script.call(calls[*call])
                }
            });
            let (id, sent) = self.send(connection, commands, left, in_flight).await?;
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
            // The server was restarted, or its scripts were flushed. After one text, it knows the hash again, unless it refused that
            // call (its key has moved to another node), or several shards are behind it.
            by_text = match (by_text, are_unknown) {
                (0, true) => 1,
                (0, false) => 0,
                _ => open.len(),
            };
            left = within.saturating_sub(CLOCK.now().since(started));
        }
    }
}
