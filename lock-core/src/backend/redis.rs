//! Locks on one Redis or Valkey primary. The only place that builds a Redis command.

use std::{fmt, num::NonZeroU64, sync::Arc, time::Duration};

use crate::{
    backend::{
        AcquireOutcome, AcquireRequest, Acquired, Ahead, AheadRequest, Answer, Asks, Backend,
        Failure, ReleaseRequest, Released, RenewRequest, Renewed, Then,
    },
    engine::Timing,
    error::LockError,
    grants::Grants,
    inspect::{Health, Sighting},
    options::RESERVED,
};

mod address;
mod answers;
mod commands;
mod connection;
mod contention;
mod counting;
mod failure;
mod health;
mod link;
mod lua;
mod mailbox;
pub(crate) mod node;
mod opening;
mod probe;
mod resp;
mod socket;

use address::Address;
use answers::{read_acquired, read_ahead, read_plain, read_released, read_renewed, read_sighting};
use commands::Commands;
use contention::Contention;
use counting::{Counting, Last};
use link::Link;
use lua::{ACQUIRE, AHEAD, Call, FORCE_RELEASE, INSPECT, RELEASE, RENEW};
use mailbox::Mailbox;
use probe::Ways;
use resp::{
    Value,
    Word::{self, Joined, Number, Numbered, Text},
};

#[derive(Clone)]
pub(crate) struct RedisBackend {
    link: Arc<Link>,
    /// One for the whole database, without an expiry: nothing grows with the number of locks, and eviction policies for
    /// expiring keys spare it.
    fence: Arc<str>,
    /// Names this manager to the servers: where its grants are published.
    channel: Arc<str>,
    counting: Arc<Counting>,
    contention: Arc<Contention>,
    /// For users who may not run scripts.
    commands: Arc<Commands>,
    within: Duration,
}

impl RedisBackend {
    /// Connects with the first request.
    pub(crate) fn new(url: &str, timing: Timing, grants: Arc<Grants>) -> Result<Self, LockError> {
        let address = Address::parse(url)?;
        let channel = uuid::Uuid::new_v4().simple().to_string();
        let mailbox = Mailbox::new(format!("{RESERVED}grants:{channel}"), grants);
        let link = Arc::new(Link::new(address, timing, mailbox));
        let fence: Arc<str> = format!("{RESERVED}fence").into();
        Ok(Self {
            commands: Arc::new(Commands::new(link.clone(), fence.clone())),
            link,
            fence,
            channel: channel.into(),
            counting: Arc::default(),
            contention: Arc::default(),
            within: timing.command_timeout,
        })
    }

    /// Makes the first connection, and makes sure of whom it talks to.
    pub(crate) async fn greet(&self) -> Result<(), Failure> {
        let timing = self.link.timing();
        let within = timing.connect_timeout + timing.command_timeout;
        match self.link.send(&[&[Text("PING")]], within, None).await? {
            (_, Value::SimpleString(pong)) if pong == "PONG" => Ok(()),
            (_, Value::ServerError(error)) => match error.code() {
                "NOAUTH" => Err(failure::wrong_credentials(self.link.address().shown())),
                _ => Err(failure::answered(&error)),
            },
            _ => Err(failure::no_redis(self.link.address().shown())),
        }
    }

    /// The lock and its companions: the fencing counter, and the queue, which is named from the full key, whatever the
    /// prefix, so that managers with different prefixes that mean the same lock stand in the same queue.
    fn keys<'a>(&'a self, full_key: &'a str) -> [Word<'a>; 3] {
        [Text(full_key), Text(&self.fence), Joined(QUEUE, full_key)]
    }

    /// `counted_from`: than what the fencing token must be larger if it may be counted up.
    fn acquire_arguments<'a>(
        &'a self,
        request: &'a AcquireRequest,
        asks: Asks,
        counted_from: Option<u64>,
    ) -> [Word<'a>; 6] {
        let known = counted_from.unwrap_or(0);
        let tokens = counted_from.map_or(request.tokens, |_| 0);
        [
            Text(request.token.expose()),
            Number(millis(request.ttl)),
            Number(known.max(request.known_fencing)),
            Number(tokens.into()),
            match asks {
                Asks::Once => Text("try"),
                Asks::ToWait => Text("wait"),
                Asks::AfterIts(place) => Number(place.map_or(0, NonZeroU64::get)),
            },
            Numbered(&self.channel, request.entry),
        ]
    }

    /// `is_plain`: nothing with this token has been asked to be released before.
    fn release_arguments<'a>(
        &'a self,
        request: &'a ReleaseRequest,
        is_plain: bool,
    ) -> Vec<Word<'a>> {
        let mut words = vec![Text(request.token.expose()), Number(request.known_fencing)];
        // One that is sent again may find that another has had the lock since.
        if request.keep.is_some() || request.entry.is_some() || !is_plain {
            words.push(Number(request.keep.map_or(0, millis)));
            words.extend(request.entry.map(|entry| Numbered(&self.channel, entry)));
        }
        words
    }

    /// Takes a key that nobody else is expected to want: the lock first, and then its fencing token, since another order
    /// could hand out tokens that go back. Last of all, whether somebody waits: for nobody may barge in.
    fn write_plain(&self, out: &mut Vec<u8>, request: &AcquireRequest) -> usize {
        resp::write_command(out, &[&set_if_free(request)]);
        resp::write_command(out, &[&[Text("INCR"), Text(&self.fence)]]);
        resp::write_command(out, &[&[Text("LLEN"), Joined(QUEUE, &request.full_key)]]);
        3
    }

    /// Without a way for grants, an entry in the queue would only be passed over.
    fn asks(&self, request: &AcquireRequest) -> Asks {
        if self.link.has_grants() {
            request.asks
        } else {
            Asks::Once
        }
    }
}

/// Stands before the full key, for the list of those who wait for it.
const QUEUE: &str = "__lock_core__:queue:";

impl fmt::Debug for RedisBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.link.address().fmt(f)
    }
}

impl Backend for RedisBackend {
    fn acquire(&self, request: AcquireRequest) -> Answer<Acquired> {
        let backend = self.clone();
        Box::pin(async move {
            if let Ways::Commands(by) = backend.link.ways(backend.within).await? {
                return backend.commands.acquire(by, &request).await;
            }
            let asks = backend.asks(&request);
            let call = Call {
                keys: &backend.keys(&request.full_key),
                arguments: &backend.acquire_arguments(&request, asks, None),
            };
            let (id, answer) = ACQUIRE
                .run(&backend.link, call, backend.within, Some(&request.trail))
                .await?;
            read_acquired(&answer, id, asks)
        })
    }

    fn acquire_at_once(&self, request: &AcquireRequest, then: Then<Acquired>) {
        let asks = self.asks(request);
        let plain =
            !matches!(asks, Asks::AfterIts(_)) && !self.contention.is_expected(&request.full_key);
        let last = self.counting.last().filter(|_| request.tokens == 1);
        let write = |out: &mut Vec<u8>, id, now| {
            let counted_from = last.and_then(|last| last.floor(id, now));
            if plain && counted_from.is_some() {
                return self.write_plain(out, request);
            }
            let call = Call {
                keys: &self.keys(&request.full_key),
                arguments: &self.acquire_arguments(request, asks, counted_from),
            };
            ACQUIRE.write(out, call);
            1
        };
        let floor = last.map_or(0, Last::token).max(request.known_fencing);
        let full_key = request.full_key.clone();
        let (counting, contention) = (self.counting.clone(), self.contention.clone());
        let read = move |values: Vec<Value>, id, sent| {
            let acquired = match <[Value; 3]>::try_from(values) {
                Ok(answers) => read_plain(answers, id, floor),
                Err(values) => {
                    let answer =
                        failure::of_value(values.into_iter().next().unwrap_or(Value::Nil))?;
                    let acquired = read_acquired(&answer, id, asks)?;
                    if let (AcquireOutcome::Granted(tokens), Value::Array(_)) =
                        (acquired.outcome, &answer)
                    {
                        counting.note(id, sent, tokens.last());
                    }
                    Ok(acquired)
                }
            };
            let alone = matches!(&acquired, Ok(acquired) if matches!(acquired.outcome, AcquireOutcome::Granted(_)));
            contention.note(&full_key, !alone);
            acquired
        };
        self.link.send_at_once(&request.trail, write, read, then);
    }

    fn renew_ahead(&self, request: AheadRequest) -> Answer<Ahead> {
        let backend = self.clone();
        Box::pin(async move {
            if let Ways::Commands(by) = backend.link.ways(backend.within).await? {
                return backend.commands.renew_ahead(by, &request).await;
            }
            let call = Call {
                keys: &backend.keys(&request.full_key),
                arguments: &[
                    Text(request.token.expose()),
                    Number(millis(request.ttl)),
                    Number(request.known_fencing),
                    Number(request.tokens.into()),
                ],
            };
            let (_, answer) = AHEAD.run(&backend.link, call, backend.within, None).await?;
            read_ahead(&answer).ok_or_else(|| failure::nonsense("a renewal ahead"))
        })
    }

    fn renew(
        &self,
        batch: Vec<RenewRequest>,
        within: Duration,
    ) -> Answer<Vec<Result<Renewed, Failure>>> {
        let backend = self.clone();
        Box::pin(async move {
            if let Ways::Commands(by) = backend.link.ways(within).await? {
                return backend.commands.renew(by, &batch, within).await;
            }
            let words: Vec<_> = batch
                .iter()
                .map(|request| {
                    (
                        [Text(&request.full_key)],
                        [Text(request.token.expose()), Number(millis(request.ttl))],
                    )
                })
                .collect();
            let calls: Vec<_> = words
                .iter()
                .map(|(keys, arguments)| Call { keys, arguments })
                .collect();
            let answers = RENEW.run_all(&backend.link, &calls, within).await?;
            Ok(answers.iter().map(read_renewed).collect())
        })
    }

    fn release(&self, request: ReleaseRequest) -> Answer<Released> {
        let backend = self.clone();
        Box::pin(async move {
            if let Ways::Commands(by) = backend.link.ways(backend.within).await? {
                return backend.commands.release(by, &request).await;
            }
            let call = Call {
                keys: &backend.keys(&request.full_key),
                arguments: &backend.release_arguments(&request, request.trail.is_empty()),
            };
            let (id, answer) = RELEASE
                .run(&backend.link, call, backend.within, Some(&request.trail))
                .await?;
            read_released(&answer, id)
        })
    }

    fn release_at_once(&self, request: &ReleaseRequest, then: Then<Released>) {
        // Before this one is noted there, too.
        let is_plain = request.trail.is_empty();
        let write = |out: &mut Vec<u8>, _, _| {
            let call = Call {
                keys: &self.keys(&request.full_key),
                arguments: &self.release_arguments(request, is_plain),
            };
            RELEASE.write(out, call);
            1
        };
        let read = |values: Vec<Value>, id, _| {
            let value = values.into_iter().next().unwrap_or(Value::Nil);
            read_released(&failure::of_value(value)?, id)
        };
        self.link.send_at_once(&request.trail, write, read, then);
    }

    fn flush(&self) {
        self.link.flush();
    }

    fn inspect(&self, full_key: Arc<str>) -> Answer<Option<Sighting>> {
        let backend = self.clone();
        Box::pin(async move {
            if let Ways::Commands(_) = backend.link.ways(backend.within).await? {
                return backend.commands.inspect(&full_key).await;
            }
            let call = Call {
                keys: &[Text(&full_key), Joined(QUEUE, &full_key)],
                arguments: &[],
            };
            let (_, answer) = INSPECT
                .run(&backend.link, call, backend.within, None)
                .await?;
            read_sighting(&answer)
        })
    }

    fn force_release(&self, full_key: Arc<str>, known_fencing: u64) -> Answer<()> {
        let backend = self.clone();
        Box::pin(async move {
            if let Ways::Commands(_) = backend.link.ways(backend.within).await? {
                return backend.commands.force_release(&full_key).await;
            }
            let call = Call {
                keys: &backend.keys(&full_key),
                arguments: &[Number(known_fencing)],
            };
            match FORCE_RELEASE
                .run(&backend.link, call, backend.within, None)
                .await?
            {
                (_, Value::Int(_)) => Ok(()),
                _ => Err(failure::nonsense("a forced release")),
            }
        })
    }

    fn check(&self) -> Answer<Health> {
        let backend = self.clone();
        Box::pin(async move { health::check(&backend).await })
    }

    fn round_trip(&self) -> Duration {
        self.link.round_trip()
    }
}

fn set_if_free(request: &AcquireRequest) -> [Word<'_>; 6] {
    [
        Text("SET"),
        Text(&request.full_key),
        Text(request.token.expose()),
        Text("NX"),
        Text("PX"),
        Number(millis(request.ttl)),
    ]
}

/// Whole milliseconds, rounded up: an expiry that is a little late is safe, one of zero would delete the key.
fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ttl_is_rounded_up_to_whole_milliseconds() {
        assert_eq!(millis(Duration::from_nanos(1)), 1);
        assert_eq!(millis(Duration::from_millis(100)), 100);
        assert_eq!(millis(Duration::from_micros(100_001)), 101);
    }
}
