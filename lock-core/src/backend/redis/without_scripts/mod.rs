//! Locks for users without the right to run scripts. They are slower than with scripts, and waiters poll.
//!
//! There is no queue. A free lock is taken in one round trip, as with scripts (`protocol/messages.rs`). This folder has the
//! requests that may find the lock busy. They take the lock first, and then a fencing token, since the other order could hand out
//! tokens that decrease. A key that is held is changed or deleted in a transaction. A release takes three round trips; a batch of
//! renewals takes two. Transactions have separate connections, and those of renewals have one that nothing else delays.
//!
//! The owner tokens begin with `lc0:`, which tells waiters with scripts that no grant will arrive, so that they poll, too.

use std::{sync::Arc, time::Duration};

use redis::Value;

use crate::{
    backend::{
        Acquire, Answered, Release, Renew,
        in_flight::ConnectionId,
        owner::Owner,
        redis::{
            protocol::{
                calls::set_if_free,
                replies::{
                    SeenLock, answered, far_behind, no_clock, of_reply, of_value, read_acquired,
                    read_id, time_left, token,
                },
            },
            topology::{companions::clock_moved_to, key_location::KeyLocation},
            transport::{
                CLOCK,
                command::{
                    Arg::{self, Joined, Number, Text},
                    command, in_one_message, millis,
                },
                errors,
                reconnecting::ReconnectingConnection,
                reply,
                requests::Ready,
            },
            without_scripts::transactions::{Change, MOST_TRIES, change, change_all},
        },
    },
    engine::reply::{AcquireOutcome, Contended, QueueMode, ReleaseOutcome, Renewed},
    failure::Failure,
    fencing::{FencingBlock, LARGEST_TOKEN, PER_MILLI},
};

mod transactions;

/// A token that is more than an hour ahead of the fencing clock is wrong, because no honest process knows one.
const LARGEST_LEAD: u64 = 3_600_000 * PER_MILLI;

/// The requests without scripts.
impl KeyLocation {
    pub(super) async fn acquire_by_commands(
        &self,
        ready: &Ready,
        request: &Acquire,
        mark: Duration,
    ) -> Result<Answered<AcquireOutcome>, Failure> {
        let (key, token) = (Text(&request.owner.full_key), &request.owner.token);
        let mut commands = vec![
            command(&[&set_if_free(&*request.owner, request.ttl)]),
            command(&[&[Text("GET"), key]]),
            command(&[&[Text("PTTL"), key]]),
        ];
        if request.queue_mode != QueueMode::DoNotQueue {
            // The mark, which tells the holder that this process polls. If the lock was free, it may stay, because a process ignores
            // its own mark.
            let (name, lasts) = (Text(&self.names.channel), Number(millis(mark)));
            let mark = self.mark(&request.owner);
            commands.push(command(&[&[Text("SET"), mark, name, Text("PX"), lasts]]));
        }
        let commands = in_one_message(commands);
        let (connection, in_flight) = (ready.id(), &request.owner.in_flight);
        let within = ready.reconnecting.acquire_within(request.ttl);
        let mut replies = ready.several(commands, in_flight, within).await?;
        // The reply to the mark does not matter, because without a mark, the lock is merely less fair.
        replies.truncate(3);
        let [entered, holder, left] =
            <[Value; 3]>::try_from(replies).map_err(|_| errors::nonsense("an acquire"))?;
        let is_set = of_reply(entered, connection, in_flight)? != Value::Nil;
        let holder = match of_value(holder) {
            Err(failure) if is_set => return Err(failure.executed_in_part()),
            holder => holder?,
        };
        let is_ours = reply::bytes(&holder).is_some_and(|holder| token.is(holder));
        if !is_ours {
            return busy(left, connection);
        }
        // An earlier request set the key, and its reply was lost. The ttl counts from that request, so the lease is renewed.
        if !is_set {
            let prolonged = prolonged(&request.owner, request.ttl);
            if !change(self, prolonged).await? {
                return busy(Value::Int(0), connection);
            }
        }
        // This client already has the key. If the token arrives when less than half of the ttl is left, the lock is requested
        // again. If this future is dropped here, the release of the dropped acquire gives the key back.
        let token = self.token(request.known_fencing).await;
        let token = token.map_err(Failure::executed_in_part)?;
        Ok(Answered {
            outcome: AcquireOutcome::Granted(FencingBlock::new(token, 1).into()),
            order: Some(connection),
        })
    }

    /// Renews all leases in two messages, however many there are. In a cluster, all keys of a transaction must have one slot.
    pub(super) async fn renew_by_commands(
        &self,
        batch: &[Renew],
        within: Duration,
    ) -> Vec<Result<Renewed, Failure>> {
        let at_once = if self.names.are_of_a_slot() {
            1
        } else {
            batch.len()
        };
        // The renewal of a lease that is handed over locally must not delay those of other leases.
        let connection = match batch {
            [request] if request.tokens > 0 => &self.server.changes,
            _ => &self.server.renewals,
        };
        let started = CLOCK.now();
        let mut renewals = Vec::with_capacity(batch.len());
        for some in batch.chunks(at_once.max(1)) {
            let changes = some
                .iter()
                .map(|request| prolonged(&request.owner, request.ttl));
            let changes: Vec<_> = changes.collect();
            let left = within.saturating_sub(CLOCK.now().since(started));
            let made = change_all(self, connection, &changes, left).await;
            let made = made.unwrap_or_else(|failure| vec![Err(failure); some.len()]);
            for (request, made) in some.iter().zip(made) {
                renewals.push(match made {
                    Ok(true) => Ok(Renewed::Extended {
                        contended: self.contended(request).await,
                        tokens: self.tokens(request).await,
                    }),
                    Ok(false) => Ok(Renewed::NotOurs),
                    Err(failure) => Err(failure),
                });
            }
        }
        renewals
    }

    /// Returns whether other processes poll, for a lease that may be passed on.
    async fn contended(&self, request: &Renew) -> Contended {
        if request.tokens == 0 {
            return Contended::NoneWaiting;
        }
        let (connection, mark) = (&self.server.connection, self.mark(&request.owner));
        let (get, within) = ([Text("GET"), mark], connection.reply_within());
        match connection.send(&[&get], within, None).await {
            Ok((_, Value::Nil)) => Contended::NoneWaiting,
            Ok((_, name)) if reply::text(&name) == Some(&self.names.channel) => {
                Contended::NoneWaiting
            }
            // They may poll.
            _ => Contended::OthersWaiting,
        }
    }

    fn mark<'a>(&'a self, owner: &'a Owner) -> Arg<'a> {
        Joined(&self.names.asked, &owner.full_key)
    }

    /// Returns one token, if any is wanted and can be given. The lease has been renewed in any case.
    async fn tokens(&self, request: &Renew) -> FencingBlock {
        if request.tokens == 0 {
            return FencingBlock::EMPTY;
        }
        let token = self.token(request.known_fencing).await;
        token.map_or(FencingBlock::EMPTY, |token| FencingBlock::new(token, 1))
    }

    pub(super) async fn release_by_commands(
        &self,
        connection: &Arc<ReconnectingConnection>,
        request: &Release,
    ) -> Result<Answered<ReleaseOutcome>, Failure> {
        let (key, token) = (&*request.owner.full_key, &request.owner.token);
        // A PING on the connection of the acquire, which the transaction must not overtake on its own connection.
        let ping = in_one_message([command(&[&[Text("PING")]])]);
        let within = connection.reply_within();
        let sent = connection.send_all(ping, within, Some(&request.owner.released_on));
        let (id, replies) = sent.await?;
        if !matches!(
            &replies[..],
            [Value::SimpleString(_) | Value::ServerError(_)]
        ) {
            // This is the reply to another request.
            return Err(errors::nonsense("a PING"));
        }
        let words = match request.keep {
            None => command(&[&[Text("DEL"), Text(key)]]),
            // Another value, so that no renewal extends it.
            Some(keep) => command(&[
                &[Text("SET"), Text(key), Joined(&token.expose(), ".")],
                &[Text("PX"), Number(millis(keep))],
            ]),
        };
        let release = Change {
            key,
            holds: token,
            command: words,
            unless_it_lasts: u64::MAX,
        };
        let is_released = change(self, release).await?;
        Ok(Answered {
            outcome: if is_released {
                ReleaseOutcome::Released
            } else {
                ReleaseOutcome::NotOurs
            },
            order: Some(id),
        })
    }

    /// Returns the holder of the key, and how much longer it is held, without a script.
    pub(super) async fn look(&self, full_key: &str) -> Result<SeenLock, Failure> {
        let looks = ["GET", "PTTL"].map(|look| command(&[&[Text(look), Text(full_key)]]));
        let connection = &self.server.connection;
        let (looks, within) = (in_one_message(looks), connection.reply_within());
        let (_, seen) = connection.send_all(looks, within, None).await?;
        let seen = seen.into_iter().map(of_value);
        match &seen.collect::<Result<Vec<_>, _>>()?[..] {
            // It may have expired between the two commands.
            [Value::Nil, _] | [_, Value::Int(-2)] => Ok(None),
            [holder, Value::Int(left)] => {
                let holder = reply::bytes(holder).map(String::from_utf8_lossy);
                let holder = holder.ok_or_else(|| errors::nonsense("an inspection"))?;
                Ok(Some((holder.into_owned(), time_left(*left))))
            }
            _ => Err(errors::nonsense("an inspection")),
        }
    }

    pub(super) async fn force_release_by_commands(&self, full_key: &str) -> Result<(), Failure> {
        // A key of another type is not a lock, and is kept, because reading it fails.
        if self.look(full_key).await?.is_some() {
            let connection = &self.server.connection;
            let (delete, within) = ([Text("DEL"), Text(full_key)], connection.reply_within());
            let (_, reply) = connection.send(&[&delete], within, None).await?;
            of_value(reply)?;
        }
        Ok(())
    }

    /// Returns the fencing token of a lock that was just taken: the next id of the fencing clock. If the process knows a larger
    /// token, or the sequence number is too large, the clock is advanced.
    async fn token(&self, known: u64) -> Result<u64, Failure> {
        let (clock, connection) = (&*self.names.clock, &self.server.connection);
        let mut next = "*".to_owned();
        // Each second try advances the clock.
        for _ in 0..2 * MOST_TRIES {
            let (words, within) = (clock_moved_to(clock, &next), connection.reply_within());
            let (_, reply) = connection.send(&[&words], within, None).await?;
            if let Value::ServerError(error) = &reply {
                let details = errors::details_of(error);
                if errors::code_of(error) == "WRONGTYPE" || details.contains("exhausted") {
                    return Err(no_clock(clock));
                }
                if !details.contains("equal or smaller") {
                    return Err(answered(error));
                }
                // Another client has moved it there, or beyond.
                "*".clone_into(&mut next);
                continue;
            }
            let id = read_id(&reply).ok_or_else(|| errors::nonsense("a fencing clock"))?;
            if let Some(token) = token(id).filter(|token| *token > known) {
                return Ok(token);
            }
            let first = id.0.saturating_mul(PER_MILLI);
            let first = first.saturating_add(id.1.min(PER_MILLI));
            if known > first.saturating_add(LARGEST_LEAD) {
                return Err(far_behind(clock, known));
            }
            let least = first.max(known.saturating_add(1));
            if least >= LARGEST_TOKEN {
                return Err(no_clock(clock));
            }
            next = format!("{}-{}", least / PER_MILLI, least % PER_MILLI);
        }
        Err(Failure::not_now(
            "other clients advanced the fencing clock during every try",
        ))
    }
}

/// Returns the change that makes a lease last for its ttl from now on.
fn prolonged(owner: &Owner, ttl: Duration) -> Change<'_> {
    let (key, ttl) = (&*owner.full_key, millis(ttl));
    Change {
        key,
        holds: &owner.token,
        command: command(&[&[Text("PEXPIRE"), Text(key), Number(ttl)]]),
        unless_it_lasts: ttl,
    }
}

/// Builds the reply that a script would return. `left` is the reply to PTTL, or 0 if the key is free by now.
fn busy(left: Value, connection: ConnectionId) -> Result<Answered<AcquireOutcome>, Failure> {
    let left = match left {
        Value::Int(-2) => Value::Int(0),
        left => left,
    };
    let reply = Value::Array(vec![Value::Int(0), left, Value::Int(0), Value::Int(0)]);
    read_acquired(&reply, connection, QueueMode::DoNotQueue)
}
