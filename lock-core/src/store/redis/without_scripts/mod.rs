//! Locks for users without the right to run scripts: slower than by scripts, and waiters poll.
//!
//! There is no queue. A free lock is taken in one round trip, as with scripts (`at_once.rs`). Here are the requests that may find the
//! lock busy. They take the lock first, and then a fencing token, since the other order could hand out tokens that decrease. A key that
//! is held is changed by a command that compares, or in a transaction. A release by a transaction takes three round trips; a batch of
//! renewals takes two. Changes have connections of their own, where a transaction begins and ends. Renewals have one that nothing else
//! delays.

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
                capabilities::Compare,
                errors,
                reconnecting::ReconnectingConnection,
                wire::command::{
                    Arg::{self, Joined, Number, Text},
                    Outgoing, command, millis, pipeline,
                },
            },
            scripts::{
                NodeRole,
                replies::{read_acquired, read_id, read_sighting},
            },
            without_scripts::change::{Becomes, Change, Changes, MOST_TRIES, is_done},
        },
    },
};

mod change;

/// A token that lies more than an hour ahead of the fencing clock is wrong: no honest process knows one.
const LARGEST_LEAD: u64 = 3_600_000 * PER_MILLI;

#[derive(Debug)]
pub(super) struct Commands {
    connection: Arc<ReconnectingConnection>,
    /// Where locks are taken.
    holding: Arc<ReconnectingConnection>,
    changes: Changes,
    /// Hundreds of releases, one after the other, must not let a lease run out.
    renewals: Changes,
}

impl Commands {
    pub(super) fn new(
        connection: Arc<ReconnectingConnection>,
        holding: Arc<ReconnectingConnection>,
    ) -> Self {
        Self {
            changes: Changes::to(&connection),
            renewals: Changes::to(&connection),
            connection,
            holding,
        }
    }

    /// The connections that only changes use.
    pub(super) fn connections(&self) -> [&Arc<ReconnectingConnection>; 2] {
        [&self.changes.connection, &self.renewals.connection]
    }

    pub(super) async fn acquire(
        &self,
        by: Compare,
        clock: &str,
        request: &Acquire,
    ) -> Result<Acquired, Failure> {
        let (key, token) = (Text(&request.full_key), &request.token);
        let commands = pipeline([
            command(&[&set_if_free(request)]),
            command(&[&[Text("GET"), key]]),
            command(&[&[Text("PTTL"), key]]),
        ]);
        let (within, in_flight) = (
            self.holding.acquire_within(request.ttl),
            &*request.in_flight,
        );
        let (connection, answers) = self
            .holding
            .send_all(commands, within, Some(in_flight))
            .await?;
        let [set, holder, left] =
            <[Value; 3]>::try_from(answers).map_err(|_| errors::nonsense("an acquire"))?;
        let is_set = errors::of_answer(set, connection, in_flight)? != Value::Nil;
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
        if !is_set
            && self
                .prolong(by, &request.full_key, token, request.ttl)
                .await?
                == Renewed::NotOurs
        {
            return busy(Value::Int(0), connection);
        }
        // This client has the key already. If the token comes when less than half of the ttl is left, the lock is asked for again. If
        // this future is dropped here, the release of the dropped acquire gives the key back.
        let token = self.token(clock, request.known_fencing).await;
        let token = token.map_err(Failure::executed_in_part)?;
        Ok(Acquired {
            outcome: AcquireOutcome::Granted(FencingBlock::new(token, 1).into()),
            connection,
        })
    }

    pub(super) async fn prefetch(
        &self,
        by: Compare,
        clock: &str,
        request: &Prefetch,
    ) -> Result<Prefetched, Failure> {
        let prolonged = self.prolong(by, &request.full_key, &request.token, request.ttl);
        if prolonged.await? == Renewed::NotOurs {
            return Ok(Prefetched::NotOurs);
        }
        let token = self.token(clock, request.known_fencing).await?;
        Ok(Prefetched::Tokens {
            tokens: FencingBlock::new(token, 1),
            // There is no queue that would tell.
            contended: Contended::OthersWaiting,
        })
    }

    /// Renews all leases in two messages, however many there are.
    pub(super) async fn renew(
        &self,
        by: Compare,
        node_role: NodeRole,
        batch: &[Renew],
        within: Duration,
    ) -> Result<Vec<Result<Renewed, Failure>>, Failure> {
        let changes: Vec<_> = batch
            .iter()
            .map(|request| prolonged(&request.full_key, &request.token, request.ttl))
            .collect();
        let renewals = self.renewals.make_all(by, node_role, &changes, within);
        let renewed = renewals.await?;
        Ok(renewed
            .into_iter()
            .map(|held| held.map(is_renewed))
            .collect())
    }

    pub(super) async fn release(
        &self,
        by: Compare,
        connection: &Arc<ReconnectingConnection>,
        request: &Release,
    ) -> Result<Released, Failure> {
        let token = request.token.expose();
        let change = Change {
            key: &request.full_key,
            holds: token,
            becomes: match request.keep {
                None => Becomes::Nothing,
                // The lease has ended: a later renewal must not prolong it.
                Some(keep) => Becomes::Other(Joined(token, "."), Some(millis(keep))),
            },
        };
        // A transaction is on another connection, and must not overtake the acquire.
        let first = match by {
            Compare::Watch => command(&[&[Text("PING")]]),
            Compare::Delifeq => change.command(by),
        };
        let (within, in_flight) = (connection.reply_within(), &*request.in_flight);
        let sent = connection.send_all(Outgoing::One(first), within, Some(in_flight));
        let (connection, answers) = sent.await?;
        let is_released = match by {
            Compare::Watch => self.changes.make(by, change).await?,
            Compare::Delifeq => is_done(answers.into_iter().next())?,
        };
        Ok(Released {
            outcome: if is_released {
                ReleaseOutcome::Released
            } else {
                ReleaseOutcome::NotOurs
            },
            connection,
        })
    }

    /// Sends commands on the connection for all but taking a lock; one reply each, none of them an error.
    async fn ask(&self, commands: &[&[Arg<'_>]]) -> Result<Vec<Value>, Failure> {
        let commands = pipeline(commands.iter().map(|words| command(&[words])));
        let within = self.connection.reply_within();
        let (_, answers) = self.connection.send_all(commands, within, None).await?;
        answers.into_iter().map(errors::of_value).collect()
    }

    pub(super) async fn inspect(&self, full_key: &str) -> Result<Option<Sighting>, Failure> {
        let look = ["GET", "PTTL"].map(|look| [Text(look), Text(full_key)]);
        let mut seen = self.ask(&[&look[0], &look[1]]).await?;
        if seen.first() == Some(&Value::Nil) {
            return Ok(None);
        }
        // There is no queue, and one holder.
        seen.extend([Value::Int(0), Value::Int(1)]);
        seen.extend([Value::Array(Vec::new()), Value::Array(Vec::new())]);
        read_sighting(&Value::Array(seen))
    }

    pub(super) async fn force_release(&self, full_key: &str) -> Result<(), Failure> {
        // A key of another type is no lock, and stays: reading it fails.
        if self.inspect(full_key).await?.is_some() {
            self.ask(&[&[Text("DEL"), Text(full_key)]]).await?;
        }
        Ok(())
    }

    /// Renews a lock that is being taken or handed on. It does not use the connection of the renewals, which it would delay.
    async fn prolong(
        &self,
        by: Compare,
        full_key: &str,
        token: &OwnerToken,
        ttl: Duration,
    ) -> Result<Renewed, Failure> {
        let change = prolonged(full_key, token, ttl);
        self.changes.make(by, change).await.map(is_renewed)
    }

    /// The fencing token of a lock that was just taken: the next id of the fencing clock. If the process knows a larger token, or the
    /// sequence number is too large, the clock is moved on.
    async fn token(&self, clock: &str, known: u64) -> Result<u64, Failure> {
        for _ in 0..MOST_TRIES {
            let Some((millis, sequence)) = self.move_clock(clock, "*").await? else {
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
            if self.move_clock(clock, &id).await?.is_some() {
                return Ok(token);
            }
            // Another client has moved it there, or beyond.
        }
        Err(Failure::not_now(
            "other clients moved the fencing clock all the time",
        ))
    }

    /// Moves the fencing clock to an id. Returns the id; nothing if the clock is there already, or beyond.
    async fn move_clock(&self, clock: &str, id: &str) -> Result<Option<(u64, u64)>, Failure> {
        let move_on = Outgoing::One(command(&[&move_to(Text(clock), id)]));
        let within = self.connection.reply_within();
        let (_, mut answers) = self.connection.send_all(move_on, within, None).await?;
        match answers.pop() {
            Some(Value::ServerError(error)) => {
                let details = errors::details_of(&error);
                if details.contains("equal or smaller") {
                    Ok(None)
                } else if errors::code_of(&error) == "WRONGTYPE" || details.contains("exhausted") {
                    Err(errors::no_clock(clock))
                } else {
                    Err(errors::answered(&error))
                }
            }
            answer => {
                let id = answer.and_then(|id| read_id(&id));
                let none = || errors::nonsense("a fencing clock");
                id.map(Some).ok_or_else(none)
            }
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

fn is_renewed(held: bool) -> Renewed {
    if held {
        Renewed::Extended
    } else {
        Renewed::NotOurs
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

/// Reads the reply to TIME.
pub(crate) fn read_micros(time: &Value) -> Option<u64> {
    let (seconds, micros): (u64, u64) = redis::from_redis_value_ref(time).ok()?;
    seconds.checked_mul(1_000_000)?.checked_add(micros)
}
