//! Locks for users without the right to run scripts: slower than by scripts, and waiters poll.
//!
//! There is no queue. An acquire is one message of several commands, which is not atomic: the lock first, and then the counter,
//! since the other order could hand out tokens that decrease. A key that is held is changed by a command that compares, or in a
//! transaction on a connection of its own, one after the other: three round trips for each release, two for each batch of
//! renewals. Renewals have a connection that nothing else delays.

use std::{sync::Arc, time::Duration};

use redis::Value;
use tokio::sync::Mutex;

use crate::{
    fencing::FencingBlock,
    inspect::Sighting,
    store::{
        Acquire, AcquireOutcome, Acquired, Busy, Contended, Expiry, Failure, Prefetch, Prefetched,
        QueueMode, Release, ReleaseOutcome, Released, Renew, Renewed, WakeUpMode,
        in_flight::ConnectionId,
        owner_token::{OwnerToken, sighting_of},
        redis::{
            connection::{
                capabilities::Compare,
                errors,
                reconnecting::ReconnectingConnection,
                wire::command::{
                    Arg::{self, Joined, Number, Text},
                    millis,
                },
            },
            scripts::NodeRole,
            without_scripts::{
                change::{Becomes, Change, Changed, Looked, is_done},
                counter::{CountedToken, Counter},
                message::{send, send_to},
                transaction::Transactions,
            },
        },
    },
};

mod change;
pub(crate) mod counter;
mod message;
mod transaction;

#[derive(Debug)]
pub(super) struct Commands {
    connection: Arc<ReconnectingConnection>,
    /// Where locks are taken.
    holding: Arc<ReconnectingConnection>,
    changes: Transactions,
    /// Hundreds of releases, one after the other, must not let a lease run out.
    renewals: Transactions,
    /// Held while a fencing counter is moved: one request at a time, since each move makes those of others fail.
    raising: Mutex<()>,
}

impl Commands {
    pub(super) fn new(
        connection: Arc<ReconnectingConnection>,
        holding: Arc<ReconnectingConnection>,
    ) -> Self {
        Self {
            changes: Transactions::to(&connection),
            renewals: Transactions::to(&connection),
            raising: Mutex::default(),
            connection,
            holding,
        }
    }

    /// The connections that only transactions use.
    pub(super) fn connections(&self) -> [&Arc<ReconnectingConnection>; 2] {
        [self.changes.connection(), self.renewals.connection()]
    }

    pub(super) async fn acquire(
        &self,
        by: Compare,
        counter: Counter<'_>,
        request: &Acquire,
    ) -> Result<Acquired, Failure> {
        let (key, token) = (Text(&request.full_key), &request.token);
        let commands: [&[Arg<'_>]; 4] = [
            &set_if_free(request),
            &[Text("GET"), key],
            &[Text("PTTL"), key],
            &[Text("INCR"), Text(counter.fence)],
        ];
        // A request that checks found the lock busy before, and mostly finds it so again. If all of them incremented the counter,
        // it would never stand still. It has to for a moment while it is moved to the server's time.
        let counts = counter.may_be_incremented()
            && !matches!(request.queue_mode, QueueMode::CheckPosition(_));
        let commands = &commands[..3 + usize::from(counts)];
        let (within, in_flight) = (
            self.holding.acquire_within(request.ttl),
            &*request.in_flight,
        );
        let (connection, answers) = send(&self.holding, commands, within, Some(in_flight)).await?;
        let mut answers = answers.into_iter();
        let mut next = || answers.next().unwrap_or(Value::Nil);
        let (set, holder, left) = (next(), next(), next());
        let said = counts.then(|| CountedToken {
            value: next(),
            connection,
        });
        let is_set = errors::of_answer(set, connection, in_flight)? != Value::Nil;
        let holder = errors::of_value(holder).map_err(|failure| {
            if is_set {
                failure.executed_in_part()
            } else {
                failure
            }
        })?;
        let is_ours =
            matches!(&holder, Value::BulkString(holder) if **holder == *token.expose().as_bytes());
        if !is_ours {
            return Ok(busy(read_expiry(&left)?, connection));
        }
        // Set by an earlier request whose reply was lost: then its time counts from there.
        if !is_set
            && self
                .prolong(by, (&request.full_key, &request.token, request.ttl))
                .await?
                == Renewed::NotOurs
        {
            return Ok(busy(Expiry::In(Duration::ZERO), connection));
        }
        let fencing = self.fencing(by, counter, said, request.known_fencing).await;
        let token = fencing.map_err(Failure::executed_in_part)?;
        Ok(Acquired {
            outcome: AcquireOutcome::Granted(FencingBlock::new(token, 1)),
            connection,
        })
    }

    pub(super) async fn prefetch(
        &self,
        by: Compare,
        counter: Counter<'_>,
        request: &Prefetch,
    ) -> Result<Prefetched, Failure> {
        if self
            .prolong(by, (&request.full_key, &request.token, request.ttl))
            .await?
            == Renewed::NotOurs
        {
            return Ok(Prefetched::NotOurs);
        }
        let fencing = self.fencing(by, counter, None, request.known_fencing);
        Ok(Prefetched::Tokens {
            tokens: FencingBlock::new(fencing.await?, 1),
            // There is no queue that would tell.
            contended: Contended::OthersWaiting,
        })
    }

    /// All in two messages, however many leases there are.
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
        let renewals = self.change_all(by, &self.renewals, node_role, &changes, within);
        let renewed = renewals.await?;
        Ok(renewed.into_iter().map(is_renewed).collect())
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
        let within = connection.reply_within();
        let in_flight = Some(&*request.in_flight);
        let (connection, changed) = if by == Compare::Watch {
            // A transaction is on another connection, and must not overtake the acquire.
            let (id, _) = send(connection, &[&[Text("PING")]], within, in_flight).await?;
            (id, self.change(by, &change).await?)
        } else {
            let command = change.comparing(by);
            let (id, answers) = send(connection, &[&command], within, in_flight).await?;
            (id, is_done(answers.into_iter().next())?)
        };
        Ok(Released {
            outcome: if changed {
                ReleaseOutcome::Released
            } else {
                ReleaseOutcome::NotOurs
            },
            connection,
        })
    }

    /// Sends commands on the connection for all but taking a lock; one reply each.
    async fn ask(&self, commands: &[&[Arg<'_>]]) -> Result<Vec<Value>, Failure> {
        let within = self.connection.reply_within();
        let (_, answers) = send(&self.connection, commands, within, None).await?;
        Ok(answers)
    }

    pub(super) async fn inspect(&self, full_key: &str) -> Result<Option<Sighting>, Failure> {
        let look: [&[Arg<'_>]; 2] = [
            &[Text("GET"), Text(full_key)],
            &[Text("PTTL"), Text(full_key)],
        ];
        let answers = self.ask(&look).await?;
        let answers: Result<Vec<_>, _> = answers.into_iter().map(errors::of_value).collect();
        match &answers?[..] {
            [Value::Nil, _] => Ok(None),
            [Value::BulkString(token), Value::Int(left)] => {
                let token = String::from_utf8_lossy(token);
                let left = u64::try_from(*left).ok().map(Duration::from_millis);
                Ok(Some(sighting_of(&token, left, 0)))
            }
            _ => Err(errors::nonsense("an inspection")),
        }
    }

    pub(super) async fn force_release(&self, full_key: &str) -> Result<(), Failure> {
        // A key of another type is no lock, and stays: reading it fails.
        if self.inspect(full_key).await?.is_some() {
            let delete: [&[Arg<'_>]; 1] = [&[Text("DEL"), Text(full_key)]];
            let answers = self.ask(&delete).await?;
            errors::of_value(answers.into_iter().next().unwrap_or(Value::Nil))?;
        }
        Ok(())
    }

    /// For a lock that is being taken or handed on. Not on the connection of the renewals, which it must not delay.
    async fn prolong(
        &self,
        by: Compare,
        (full_key, token, ttl): (&str, &OwnerToken, Duration),
    ) -> Result<Renewed, Failure> {
        let change = prolonged(full_key, token, ttl);
        is_renewed(self.change(by, &change).await)
    }

    /// Changes a key that holds the expected value; returns whether it did.
    async fn change(&self, by: Compare, change: &Change<'_>) -> Changed {
        let (role, changes) = (NodeRole::SlotOwner, std::slice::from_ref(change));
        let all = self.change_all(
            by,
            &self.changes,
            role,
            changes,
            self.connection.reply_within(),
        );
        let none = || Err(errors::nonsense("a change"));
        all.await?.into_iter().next().unwrap_or_else(none)
    }

    /// Looks at keys, and changes those that hold the expected values.
    async fn change_all(
        &self,
        by: Compare,
        transactions: &Transactions,
        node_role: NodeRole,
        changes: &[Change<'_>],
        within: Duration,
    ) -> Result<Vec<Changed>, Failure> {
        if by == Compare::Watch {
            return transactions.change(node_role, changes, within).await;
        }
        let looks: Vec<_> = changes.iter().flat_map(Change::look).collect();
        let (_, answers) = send_to(&self.connection, node_role, &looks, within).await?;
        let looked = Looked::read(changes, answers)?;
        let due = looked.due(changes);
        if due.is_empty() {
            return Ok(looked.done([]));
        }
        let commands: Vec<_> = due.iter().map(|change| change.comparing(by)).collect();
        let (_, answers) = send_to(&self.connection, node_role, &commands, within).await?;
        Ok(looked.done(answers))
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

fn is_renewed(changed: Result<bool, Failure>) -> Result<Renewed, Failure> {
    changed.map(|held| {
        if held {
            Renewed::Extended
        } else {
            Renewed::NotOurs
        }
    })
}

fn busy(expiry: Expiry, connection: ConnectionId) -> Acquired {
    Acquired {
        outcome: AcquireOutcome::Busy(Busy {
            expiry,
            position: None,
            wake_up: WakeUpMode::Poll,
            counter: None,
        }),
        connection,
    }
}

/// Reads the reply to PTTL for a key of another holder.
fn read_expiry(left: &Value) -> Result<Expiry, Failure> {
    match left {
        Value::Int(-1) => Ok(Expiry::Never),
        Value::Int(left) => {
            let left = u64::try_from(*left).unwrap_or(0);
            Ok(Expiry::In(Duration::from_millis(left)))
        }
        _ => Err(errors::nonsense("an acquire")),
    }
}
