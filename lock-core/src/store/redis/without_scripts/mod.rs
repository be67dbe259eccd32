//! Locks for users without the right to run scripts: slower than by scripts, and waiters poll.
//!
//! There is no queue. An acquire takes the lock first, and then a fencing token, since the other order could hand out tokens that
//! decrease. Each token is the server's time, or more: the counter is changed by comparing. A key that is held is changed by a
//! command that compares, or in a transaction. A release by a transaction takes three round trips; a batch of renewals takes two.
//! Changes have connections of their own, where a transaction begins and ends. Renewals have one that nothing else delays.

use std::{sync::Arc, time::Duration};

use redis::Value;
use tokio::sync::Mutex;

use crate::{
    fencing::FencingBlock,
    inspect::Sighting,
    store::{
        Acquire, AcquireOutcome, Acquired, Contended, Failure, Prefetch, Prefetched, QueueMode,
        Release, ReleaseOutcome, Released, Renew, Renewed,
        fencing_counter::LARGEST_TOKEN,
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
                replies::{read_acquired, read_sighting},
            },
            without_scripts::change::{Becomes, Change, Changes, MOST_TRIES, is_done},
        },
    },
};

mod change;

/// A token that lies more than this ahead of the server's clock is wrong: no honest process knows one.
const LARGEST_LEAD: u64 = 3_600_000_000;

#[derive(Debug)]
pub(super) struct Commands {
    connection: Arc<ReconnectingConnection>,
    /// Where locks are taken.
    holding: Arc<ReconnectingConnection>,
    changes: Changes,
    /// Hundreds of releases, one after the other, must not let a lease run out.
    renewals: Changes,
    /// Held while a fencing counter is moved, by one request at a time: each move makes concurrent ones fail.
    raising: Mutex<()>,
}

impl Commands {
    pub(super) fn new(
        connection: Arc<ReconnectingConnection>,
        holding: Arc<ReconnectingConnection>,
    ) -> Self {
        Self {
            changes: Changes::to(&connection),
            renewals: Changes::to(&connection),
            raising: Mutex::default(),
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
        fence: &str,
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
        let fencing = self.fencing(by, fence, request.known_fencing).await;
        let token = fencing.map_err(Failure::executed_in_part)?;
        Ok(Acquired {
            outcome: AcquireOutcome::Granted(FencingBlock::new(token, 1).into()),
            connection,
        })
    }

    pub(super) async fn prefetch(
        &self,
        by: Compare,
        fence: &str,
        request: &Prefetch,
    ) -> Result<Prefetched, Failure> {
        let prolonged = self.prolong(by, &request.full_key, &request.token, request.ttl);
        if prolonged.await? == Renewed::NotOurs {
            return Ok(Prefetched::NotOurs);
        }
        let fencing = self.fencing(by, fence, request.known_fencing);
        Ok(Prefetched::Tokens {
            tokens: FencingBlock::new(fencing.await?, 1),
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

    /// The fencing token of a lock that was just taken: the server's time, or more where the counter or the process is ahead. The
    /// counter is moved there.
    async fn fencing(&self, by: Compare, fence: &str, known: u64) -> Result<u64, Failure> {
        // This client has the key already. If the token comes when less than half of the ttl is left, the lock is asked for
        // again. If this future is dropped here, the release of the dropped acquire gives the key back.
        let _turn = self.raising.lock().await;
        for _ in 0..MOST_TRIES {
            let answers = self
                .ask(&[&[Text("TIME")], &[Text("GET"), Text(fence)]])
                .await?;
            let now = answers.first().and_then(read_micros);
            let now = now.ok_or_else(|| errors::nonsense("the time"))?;
            let before = match answers.get(1) {
                Some(Value::BulkString(before)) => String::from_utf8_lossy(before),
                _ => "0".into(),
            };
            let counter = before.parse().unwrap_or(0);
            let next = now
                .max(u64::saturating_add(counter, 1))
                .max(known.saturating_add(1));
            if known > now.max(counter).saturating_add(LARGEST_LEAD) || next >= LARGEST_TOKEN {
                return Err(errors::out_of_bounds(fence, known));
            }
            let is_moved = if answers.get(1) == Some(&Value::Nil) {
                let create = [Text("SET"), Text(fence), Number(next), Text("NX")];
                is_done(self.ask(&[&create]).await?.pop())?
            } else {
                let becomes = Becomes::Other(Number(next), None);
                let (key, holds) = (fence, &*before);
                let change = Change {
                    key,
                    holds,
                    becomes,
                };
                self.changes.make(by, change).await?
            };
            if is_moved {
                return Ok(next);
            }
        }
        Err(Failure::not_now(
            "others changed the fencing counter all the time",
        ))
    }
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
