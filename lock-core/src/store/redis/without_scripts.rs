//! Locks for users without the right to run scripts: slower than by scripts, and waiters poll.
//!
//! There is no queue. A free lock is taken in one round trip, as with scripts (`at_once.rs`). Here are the requests that may find the
//! lock busy. They take the lock first, and then a fencing token, since the other order could hand out tokens that decrease. A key that
//! is held is changed in a transaction, or deleted by the command that compares if there is one (`delete_if.rs`). A release by a
//! transaction takes three round trips; a batch of renewals takes two. Transactions have connections of their own, where they begin and
//! end. Renewals have one that nothing else delays.

use std::{sync::Arc, time::Duration};

use redis::Value;

use crate::{
    fencing::{FencingBlock, LARGEST_TOKEN, PER_MILLI},
    inspect::Sighting,
    store::{
        Acquire, AcquireOutcome, Acquired, Contended, Failure, Prefetch, Prefetched, QueueMode,
        Release, ReleaseOutcome, Released, Renew, Renewed,
        in_flight::ConnectionId,
        owner_token::OwnerToken,
        redis::{
            connection::{
                errors,
                reconnecting::ReconnectingConnection,
                wire::command::{
                    Arg::{self, Number, Text},
                    Outgoing, command, millis, pipeline,
                },
            },
            scripts::replies::{read_acquired, read_id, read_sighting},
            topology::{
                key_location::KeyLocation,
                transactions::{Becomes, Change, MOST_TRIES},
            },
        },
    },
};

/// A token that lies more than an hour ahead of the fencing clock is wrong: no honest process knows one.
const LARGEST_LEAD: u64 = 3_600_000 * PER_MILLI;

/// The requests without scripts.
impl KeyLocation {
    pub(super) async fn acquire_by_commands(&self, request: &Acquire) -> Result<Acquired, Failure> {
        let (key, token) = (Text(&request.full_key), &request.token);
        let commands = pipeline([
            command(&[&set_if_free(request)]),
            command(&[&[Text("GET"), key]]),
            command(&[&[Text("PTTL"), key]]),
        ]);
        let (holding, in_flight) = (self.server.holding(), &*request.in_flight);
        let within = holding.acquire_within(request.ttl);
        let sent = holding.send_all(commands, within, Some(in_flight));
        let (connection, replies) = sent.await?;
        let [entered, holder, left] =
            <[Value; 3]>::try_from(replies).map_err(|_| errors::nonsense("an acquire"))?;
        let is_set = errors::of_answer(entered, connection, in_flight)? != Value::Nil;
        let holder = match errors::of_value(holder) {
            Err(failure) if is_set => return Err(failure.executed_in_part()),
            holder => holder?,
        };
        let is_ours =
            matches!(&holder, Value::BulkString(holder) if **holder == *token.expose().as_bytes());
        if !is_ours {
            return busy(left, connection);
        }
        // An earlier request set the key, and its reply was lost. The ttl counts from that request, so the lease is renewed.
        if !is_set && !self.prolong(&request.full_key, token, request.ttl).await? {
            return busy(Value::Int(0), connection);
        }
        // This client has the key already. If the token comes when less than half of the ttl is left, the lock is asked for again. If
        // this future is dropped here, the release of the dropped acquire gives the key back.
        let token = self.token(request.known_fencing).await;
        let token = token.map_err(Failure::executed_in_part)?;
        Ok(Acquired {
            outcome: AcquireOutcome::Granted(FencingBlock::new(token, 1).into()),
            connection,
        })
    }

    pub(super) async fn prefetch_by_commands(
        &self,
        request: &Prefetch,
    ) -> Result<Prefetched, Failure> {
        let prolonged = self.prolong(&request.full_key, &request.token, request.ttl);
        if !prolonged.await? {
            return Ok(Prefetched::NotOurs);
        }
        let token = self.token(request.known_fencing).await?;
        Ok(Prefetched::Tokens {
            tokens: FencingBlock::new(token, 1),
            // There is no queue that would tell.
            contended: Contended::OthersWaiting,
        })
    }

    /// Renews all leases in two messages, however many there are.
    pub(super) async fn renew_by_commands(
        &self,
        batch: &[Renew],
        within: Duration,
    ) -> Result<Vec<Result<Renewed, Failure>>, Failure> {
        let changes = batch
            .iter()
            .map(|request| prolonged(&request.full_key, &request.token, request.ttl));
        let (changes, renewals) = (
            changes.collect::<Vec<_>>(),
            &self.server.transactions.renewals,
        );
        let made = renewals.make_all(self.node_role, &changes, within).await?;
        let renewed = |holds| {
            if holds {
                Renewed::Extended
            } else {
                Renewed::NotOurs
            }
        };
        Ok(made.into_iter().map(|made| made.map(renewed)).collect())
    }

    pub(super) async fn release_by_commands(
        &self,
        connection: &Arc<ReconnectingConnection>,
        request: &Release,
    ) -> Result<Released, Failure> {
        let (key, token) = (&*request.full_key, request.token.expose());
        // On the connection of the acquire, which must not be overtaken. A transaction is on another one.
        let delete_if = connection.delete_if.get();
        let delete_if = delete_if.filter(|_| request.keep.is_none());
        let first = match delete_if {
            Some(delete_if) => delete_if.command(Text(key), token),
            None => command(&[&[Text("PING")]]),
        };
        let within = connection.reply_within();
        let sent = connection.send_all(Outgoing::One(first), within, Some(&request.in_flight));
        let (id, mut replies) = sent.await?;
        let is_released = match (delete_if, replies.pop()) {
            (Some(_), Some(Value::Int(deleted))) => deleted == 1,
            (_, reply) => {
                if let Some(Value::ServerError(error)) = &reply {
                    connection.delete_if.note(error);
                }
                let becomes = match request.keep {
                    None => Becomes::Nothing,
                    Some(keep) => Becomes::Ended(millis(keep)),
                };
                let change = Change {
                    key,
                    holds: token,
                    becomes,
                };
                self.server.transactions.changes.make(change).await?
            }
        };
        Ok(Released {
            outcome: if is_released {
                ReleaseOutcome::Released
            } else {
                ReleaseOutcome::NotOurs
            },
            connection: id,
        })
    }

    pub(super) async fn inspect_by_commands(
        &self,
        full_key: &str,
    ) -> Result<Option<Sighting>, Failure> {
        let looks = ["GET", "PTTL"].map(|look| command(&[&[Text(look), Text(full_key)]]));
        let connection = &self.server.connection;
        let within = connection.reply_within();
        let (_, seen) = connection.send_all(pipeline(looks), within, None).await?;
        let seen = seen.into_iter().map(errors::of_value);
        let mut seen = seen.collect::<Result<Vec<_>, _>>()?;
        if seen.first() == Some(&Value::Nil) {
            return Ok(None);
        }
        // There is no queue, and one holder.
        seen.extend([Value::Int(0), Value::Int(1)]);
        seen.extend([Value::Array(Vec::new()), Value::Array(Vec::new())]);
        read_sighting(&Value::Array(seen))
    }

    pub(super) async fn force_release_by_commands(&self, full_key: &str) -> Result<(), Failure> {
        // A key of another type is no lock, and stays: reading it fails.
        if self.inspect_by_commands(full_key).await?.is_some() {
            let connection = &self.server.connection;
            let (delete, within) = ([Text("DEL"), Text(full_key)], connection.reply_within());
            let (_, reply) = connection.send(&[&delete], within, None).await?;
            errors::of_value(reply)?;
        }
        Ok(())
    }

    /// Renews a lock that is being taken or handed on. It does not use the connection of the renewals, which it would delay.
    async fn prolong(
        &self,
        full_key: &str,
        token: &OwnerToken,
        ttl: Duration,
    ) -> Result<bool, Failure> {
        let changes = &self.server.transactions.changes;
        changes.make(prolonged(full_key, token, ttl)).await
    }

    /// The fencing token of a lock that was just taken: the next id of the fencing clock. If the process knows a larger token, or the
    /// sequence number is too large, the clock is moved on.
    async fn token(&self, known: u64) -> Result<u64, Failure> {
        let clock = &*self.names.clock;
        for _ in 0..MOST_TRIES {
            let Some((millis, sequence)) = self.move_clock("*").await? else {
                return Err(errors::nonsense("a fencing clock"));
            };
            let first = millis.saturating_mul(PER_MILLI);
            let first = first.saturating_add(sequence.min(PER_MILLI));
            if known > first.saturating_add(LARGEST_LEAD) {
                return Err(errors::far_behind(clock, known));
            }
            let token = first.max(known.saturating_add(1));
            if token >= LARGEST_TOKEN {
                return Err(errors::no_clock(clock));
            }
            if token == first && sequence < PER_MILLI {
                return Ok(token);
            }
            let id = format!("{}-{}", token / PER_MILLI, token % PER_MILLI);
            if self.move_clock(&id).await?.is_some() {
                return Ok(token);
            }
            // Another client has moved it there, or beyond.
        }
        Err(Failure::not_now(
            "other clients moved the fencing clock all the time",
        ))
    }

    /// Moves the fencing clock to an id. Returns the id; nothing if the clock is there already, or beyond.
    async fn move_clock(&self, id: &str) -> Result<Option<(u64, u64)>, Failure> {
        let (clock, connection) = (&*self.names.clock, &self.server.connection);
        let (move_on, within) = (move_to(Text(clock), id), connection.reply_within());
        let (_, reply) = connection.send(&[&move_on], within, None).await?;
        let error = match reply {
            Value::ServerError(error) => error,
            id => {
                let none = || errors::nonsense("a fencing clock");
                return read_id(&id).map(Some).ok_or_else(none);
            }
        };
        let details = errors::details_of(&error);
        if details.contains("equal or smaller") {
            Ok(None)
        } else if errors::code_of(&error) == "WRONGTYPE" || details.contains("exhausted") {
            Err(errors::no_clock(clock))
        } else {
            Err(errors::answered(&error))
        }
    }
}

/// The command that takes the next id of the fencing clock, which stays empty.
pub(super) fn next_id(clock: Arg<'_>) -> [Arg<'_>; 7] {
    move_to(clock, "*")
}

fn move_to<'a>(clock: Arg<'a>, id: &'a str) -> [Arg<'a>; 7] {
    let (name, most, none) = (Text("XADD"), Text("MAXLEN"), Text(""));
    [name, clock, most, Number(0), Text(id), none, none]
}

pub(super) fn set_if_free(request: &Acquire) -> [Arg<'_>; 6] {
    [
        Text("SET"),
        Text(&request.full_key),
        Text(request.token.expose()),
        Text("NX"),
        Text("PX"),
        Number(millis(request.ttl)),
    ]
}

/// The change that makes a lease last for its ttl from now on.
fn prolonged<'a>(full_key: &'a str, token: &'a OwnerToken, ttl: Duration) -> Change<'a> {
    Change {
        key: full_key,
        holds: token.expose(),
        becomes: Becomes::Same(millis(ttl)),
    }
}

/// Makes the reply that a script would give. `left`: the reply to PTTL, or 0 if the key is free by now.
fn busy(left: Value, connection: ConnectionId) -> Result<Acquired, Failure> {
    let left = match left {
        Value::Int(-2) => Value::Int(0),
        left => left,
    };
    let answer = Value::Array(vec![Value::Int(0), left, Value::Int(0), Value::Int(0)]);
    read_acquired(&answer, connection, QueueMode::DoNotQueue)
}
