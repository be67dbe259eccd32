//! Locks on one Redis or Valkey primary. The only place that builds a Redis command.

use std::{
    fmt,
    num::NonZeroU64,
    sync::{Arc, OnceLock, atomic::AtomicBool},
    time::Duration,
};

#[cfg(feature = "cluster")]
use crate::store::redis::topology::cluster::Cluster;
use crate::{
    error::LockError,
    inspect::{Health, Sighting},
    runtime::{clock::Clock, executor::spawn_beside},
    store::{
        Acquire, AcquireOutcome, Acquired, Failure, Prefetch, Prefetched, QueueMode, Release,
        Released, Renew, Renewed, Store, StoreFuture, Then,
        grants::Grants,
        owner_token::random_name,
        redis::{
            address::Address,
            connection::{
                capabilities::Capabilities,
                errors,
                fencing_counter::LastToken,
                sentinel::Sentinels,
                wire::resp::{
                    self,
                    Arg::{self, Number, Numbered, Text},
                    Value, millis,
                },
            },
            contention::Contention,
            rights::Usage,
            scripts::{
                ACQUIRE, Call, FORCE_RELEASE, INSPECT, PREFETCH, RELEASE,
                replies::{
                    read_acquired, read_plain, read_prefetched, read_released, read_sighting,
                },
            },
            topology::{
                Topology,
                key_location::{GrantDelivery, KeyLocation},
                server::{RedisServer, watch_sentinels},
                servers::RedisServers,
                settings::ServerSettings,
                slots::Names,
            },
            without_scripts::set_if_free,
        },
        timing::Timing,
    },
};

mod address;
#[cfg(feature = "cluster")]
mod cluster_renewals;
mod connection;
mod contention;
mod health;
mod renewals;
mod rights;
mod scripts;
mod topology;
mod trial;
#[cfg(feature = "redlock")]
pub(crate) mod voting_server;
mod without_scripts;

pub(crate) use address::{Credentials, transport::Security};
pub(crate) use rights::Scope;
pub(crate) use topology::{Access, settings::Replicas};

/// Locks on one primary, wherever it is, or on those of a cluster.
#[derive(Clone)]
pub(crate) struct RedisStore(Arc<RedisState>);

struct RedisState {
    servers: RedisServers,
    contention: Arc<Contention>,
    /// Whether the eviction policy was looked at.
    looked: AtomicBool,
    timing: Timing,
    usage: Usage,
    /// What is said of a user who may not run scripts, once that is known.
    without_scripts: OnceLock<String>,
}

/// What a manager asks of its servers.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    pub(crate) timing: Timing,
    pub(crate) security: Security,
    pub(crate) access: Access,
    pub(crate) replicas: Option<Replicas>,
    pub(crate) scope: Scope,
}

/// Whether an acquire counts without the replicas that are to have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Acked {
    Must,
    NeedNot,
}

impl RedisStore {
    /// Connects with the first request.
    pub(crate) fn new(
        url: &str,
        settings: &Settings,
        grants: Arc<Grants>,
    ) -> Result<Self, LockError> {
        Self::make(url, settings, grants, false)
    }

    /// The same for one of several servers, by the votes of which locks are kept.
    #[cfg(feature = "redlock")]
    pub(crate) fn one_of_several(url: &str, settings: &Settings) -> Result<Self, LockError> {
        // No grants are heard of: a lock that a majority has is passed on by no single server.
        Self::make(url, settings, Arc::default(), true)
    }

    fn make(
        url: &str,
        settings: &Settings,
        grants: Arc<Grants>,
        is_one_of_several: bool,
    ) -> Result<Self, LockError> {
        let topology = Topology::parse(url, &settings.access, &settings.security)?;
        let server_settings = ServerSettings {
            timing: settings.timing,
            manager: random_name().into(),
            grants,
            replicas: settings.replicas,
        };
        let servers = match topology {
            Topology::Single(address) => one(address, None, &server_settings),
            Topology::Sentinel(service) => {
                let dispatch = server_settings.dispatch("".into());
                let sentinels = Sentinels::new(&service, server_settings.timing, &dispatch);
                one(service.primary, Some(Arc::new(sentinels)), &server_settings)
            }
            #[cfg(feature = "cluster")]
            Topology::Cluster(seeds) => {
                RedisServers::Several(Arc::new(Cluster::new(seeds, server_settings)))
            }
        };
        let usage = Usage {
            scope: settings.scope.clone(),
            is_one_of_several,
            are_several: servers.are_several(),
            polling_pause: settings.timing.polling_pause,
        };
        Ok(Self(Arc::new(RedisState {
            servers,
            contention: Arc::default(),
            looked: AtomicBool::new(false),
            timing: settings.timing,
            usage,
            without_scripts: OnceLock::new(),
        })))
    }

    /// Makes the first connection, makes sure of whom it talks to, and that its user may do what locks take.
    pub(crate) async fn greet(&self) -> Result<(), Failure> {
        let started = Clock::Boot.now();
        let within = self.0.timing.connect_timeout + self.0.timing.command_timeout;
        let left = || within.saturating_sub(Clock::Boot.now().since(started));
        if let Err(failure) = self.reach(within).await {
            let location = self.0.servers.any();
            return Err(rights::explained(&self.0.usage, &location, failure, left()).await);
        }
        health::look_at_eviction(self);
        trial::try_out(self, left()).await?;
        if let Some(warning) = self.0.usage.scope.warning() {
            tracing::warn!(server = self.0.servers.address().shown(), "{warning}");
        }
        Ok(())
    }

    async fn reach(&self, within: Duration) -> Result<(), Failure> {
        let server = match &self.0.servers {
            RedisServers::One(server, _) => server,
            #[cfg(feature = "cluster")]
            RedisServers::Several(cluster) => return cluster.greet(within).await,
        };
        let connection = &server.connection;
        if connection.sentinels().is_some() {
            spawn_beside(watch_sentinels(Arc::downgrade(server)));
        }
        match connection.send(&[&[Text("PING")]], within, None).await? {
            (_, Value::SimpleString(pong)) if pong == "PONG" => {}
            (_, Value::ServerError(error)) => {
                return Err(match error.code() {
                    "NOAUTH" => errors::wrong_credentials(connection.address().shown()),
                    "NOPERM" => errors::refused(&error, connection.address()),
                    _ => errors::answered(&error),
                });
            }
            _ => return Err(errors::no_redis(connection.address().shown())),
        }
        match &server.replica_acks {
            Some(replica_acks) => replica_acks.try_out().await,
            None => Ok(()),
        }
    }

    fn within(&self) -> Duration {
        self.0.timing.command_timeout
    }

    /// What can be asked for: without a way for grants, an entry in the queue would only be passed over.
    async fn queue_mode(
        &self,
        location: &KeyLocation,
        request: &Acquire,
    ) -> Result<QueueMode, Failure> {
        if request.queue_mode == QueueMode::DoNotQueue {
            return Ok(QueueMode::DoNotQueue);
        }
        Ok(match location.listen(self.within()).await? {
            GrantDelivery::Pushed => request.queue_mode,
            GrantDelivery::NotSubscribedYet | GrantDelivery::Unsupported => QueueMode::DoNotQueue,
        })
    }

    async fn take(&self, request: &Acquire, acked: Acked) -> Result<Acquired, Failure> {
        let acquire =
            |location: KeyLocation| async move { self.acquire_at(&location, request, acked).await };
        self.0.servers.ask(&request.full_key, acquire).await
    }

    async fn acquire_at(
        &self,
        location: &KeyLocation,
        request: &Acquire,
        acked: Acked,
    ) -> Result<Acquired, Failure> {
        let server = &location.server;
        let acquired = match location.capabilities(self.within()).await? {
            Capabilities::Commands(by) => {
                let counter = location.counter();
                server.commands.acquire(by, counter, request).await?
            }
            Capabilities::Scripts => self.acquire_by_script(location, request).await?,
        };
        if let (Some(replica_acks), AcquireOutcome::Granted(_)) =
            (&server.replica_acks, acquired.outcome)
            && acked == Acked::Must
        {
            replica_acks.gather(acquired.connection).await?;
        }
        Ok(acquired)
    }

    async fn acquire_by_script(
        &self,
        location: &KeyLocation,
        request: &Acquire,
    ) -> Result<Acquired, Failure> {
        // What nobody else wants needs no subscription.
        if request.queue_mode == QueueMode::JoinQueue
            && location.delivery() == GrantDelivery::NotSubscribedYet
            && !self.0.contention.is_expected(&request.full_key)
        {
            let acquired = self
                .ask_for(location, request, QueueMode::DoNotQueue)
                .await?;
            if matches!(acquired.outcome, AcquireOutcome::Granted(_)) {
                return Ok(acquired);
            }
            self.0.contention.note(&request.full_key, true);
        }
        let queue_mode = self.queue_mode(location, request).await?;
        self.ask_for(location, request, queue_mode).await
    }

    async fn ask_for(
        &self,
        location: &KeyLocation,
        request: &Acquire,
        queue_mode: QueueMode,
    ) -> Result<Acquired, Failure> {
        let call = Call {
            keys: &location.keys(&request.full_key),
            arguments: &acquire_arguments(location, request, queue_mode, None),
        };
        let in_flight = &request.in_flight;
        let (id, answer) = location.ask(&ACQUIRE, call, in_flight).await?;
        let answer = errors::of_answer(answer, id, in_flight)?;
        read_acquired(&answer, id, queue_mode)
    }

    async fn release_at(
        &self,
        location: &KeyLocation,
        request: &Release,
        is_plain: bool,
    ) -> Result<Released, Failure> {
        let capabilities = location.capabilities(self.within()).await?;
        let connection = location.server.releasing(&request.acquire_in_flight);
        if let Capabilities::Commands(by) = capabilities {
            return location
                .server
                .commands
                .release(by, connection, request)
                .await;
        }
        let call = Call {
            keys: &location.keys(&request.full_key),
            arguments: &release_arguments(location, request, is_plain),
        };
        let (id, answer) = location
            .run(connection, &RELEASE, call, Some(&request.in_flight))
            .await?;
        read_released(&answer, id)
    }

    async fn prefetch_at(
        &self,
        location: &KeyLocation,
        request: &Prefetch,
    ) -> Result<Prefetched, Failure> {
        if let Capabilities::Commands(by) = location.capabilities(self.within()).await? {
            let commands = &location.server.commands;
            return commands.prefetch(by, location.counter(), request).await;
        }
        let call = Call {
            keys: &location.keys(&request.full_key),
            arguments: &[
                Text(request.token.expose()),
                Number(millis(request.ttl)),
                Number(request.known_fencing),
                Number(request.tokens.into()),
            ],
        };
        let (_, answer) = location
            .run(&location.server.connection, &PREFETCH, call, None)
            .await?;
        read_prefetched(&answer).ok_or_else(|| errors::nonsense("a renewal ahead"))
    }

    async fn inspect_at(
        &self,
        location: &KeyLocation,
        full_key: &str,
    ) -> Result<Option<Sighting>, Failure> {
        if let Capabilities::Commands(_) = location.capabilities(self.within()).await? {
            return location.server.commands.inspect(full_key).await;
        }
        let [lock, _, queue] = location.keys(full_key);
        let call = Call {
            keys: &[lock, queue],
            arguments: &[],
        };
        let (_, answer) = location
            .run(&location.server.connection, &INSPECT, call, None)
            .await?;
        read_sighting(&answer)
    }

    async fn force_release_at(
        &self,
        location: &KeyLocation,
        full_key: &str,
        known_fencing: u64,
    ) -> Result<(), Failure> {
        if let Capabilities::Commands(_) = location.capabilities(self.within()).await? {
            return location.server.commands.force_release(full_key).await;
        }
        let call = Call {
            keys: &location.keys(full_key),
            arguments: &[Number(known_fencing)],
        };
        let connection = &location.server.connection;
        match location.run(connection, &FORCE_RELEASE, call, None).await? {
            (_, Value::Int(_)) => Ok(()),
            _ => Err(errors::nonsense("a forced release")),
        }
    }
}

fn one(
    address: Address,
    sentinels: Option<Arc<Sentinels>>,
    server_settings: &ServerSettings,
) -> RedisServers {
    let names = Names::of_a_server(&server_settings.manager);
    let dispatch = server_settings.dispatch(names.grants.clone());
    let server = RedisServer::with_all_keys(address, sentinels, dispatch, server_settings);
    RedisServers::One(Arc::new(server), Arc::new(names))
}

/// `counted_from`: than what the fencing token must be larger if it may be counted up.
fn acquire_arguments<'a>(
    location: &'a KeyLocation,
    request: &'a Acquire,
    queue_mode: QueueMode,
    counted_from: Option<u64>,
) -> [Arg<'a>; 6] {
    let known = counted_from.unwrap_or(0);
    let tokens = counted_from.map_or(request.tokens, |_| 0);
    [
        Text(request.token.expose()),
        Number(millis(request.ttl)),
        Number(known.max(request.known_fencing)),
        Number(tokens.into()),
        match queue_mode {
            QueueMode::DoNotQueue => Text("try"),
            QueueMode::JoinQueue => Text("wait"),
            QueueMode::CheckPosition(position) => Number(position.map_or(0, NonZeroU64::get)),
        },
        Numbered(&location.names.channel, request.entry),
    ]
}

/// `is_plain`: nothing with this token has been asked to be released before.
fn release_arguments<'a>(
    location: &'a KeyLocation,
    request: &'a Release,
    is_plain: bool,
) -> Vec<Arg<'a>> {
    let mut words = vec![Text(request.token.expose()), Number(request.known_fencing)];
    // One that is sent again may find that another has had the lock since. And the next token may not be counted up everywhere.
    let is_first = is_plain && location.server.fencing_counter.is_allowed();
    if request.keep.is_some() || request.entry.is_some() || !is_first {
        words.push(Number(request.keep.map_or(0, millis)));
        let channel = &location.names.channel;
        words.extend(request.entry.map(|entry| Numbered(channel, entry)));
    }
    words
}

/// Takes a key that nobody else is expected to want: the lock first, and then its fencing token, since another order
/// could hand out tokens that go back. Last of all, whether somebody waits: for nobody may barge in.
fn write_plain(out: &mut Vec<u8>, location: &KeyLocation, request: &Acquire) -> usize {
    let [_, fence, queue] = location.keys(&request.full_key);
    resp::write_command(out, &[&set_if_free(request)]);
    resp::write_command(out, &[&[Text("INCR"), fence]]);
    resp::write_command(out, &[&[Text("LLEN"), queue]]);
    3
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.servers.fmt(f)
    }
}

impl Store for RedisStore {
    fn acquire(&self, request: Acquire) -> StoreFuture<Acquired> {
        let store = self.clone();
        Box::pin(async move { store.take(&request, Acked::Must).await })
    }

    fn acquire_at_once(&self, request: &Acquire, then: Then<Acquired>) {
        let location = self.0.servers.location(&request.full_key);
        let server = location.server.clone();
        let contention = self.0.contention.clone();
        let plain = !matches!(request.queue_mode, QueueMode::CheckPosition(_))
            && !contention.is_expected(&request.full_key);
        let last = server
            .fencing_counter
            .last()
            .filter(|_| request.tokens == 1);
        if server.replica_acks.is_some() {
            return then(Err(Failure::not_now("this takes more than one answer")));
        }
        let (wanted, queue_mode) = match location.delivery() {
            GrantDelivery::Pushed => (request.queue_mode, request.queue_mode),
            GrantDelivery::NotSubscribedYet => (request.queue_mode, QueueMode::DoNotQueue),
            GrantDelivery::Unsupported => (QueueMode::DoNotQueue, QueueMode::DoNotQueue),
        };
        let write = |out: &mut Vec<u8>, id, now| {
            let counted_from = last.and_then(|last| last.floor(id, now));
            if plain && counted_from.is_some() {
                return write_plain(out, &location, request);
            }
            let call = Call {
                keys: &location.keys(&request.full_key),
                arguments: &acquire_arguments(&location, request, queue_mode, counted_from),
            };
            ACQUIRE.write(out, call);
            1
        };
        let floor = last.map_or(0, LastToken::token).max(request.known_fencing);
        let full_key = request.full_key.clone();
        let (in_flight, noted) = (request.in_flight.clone(), server.clone());
        let read = move |values: Vec<Value>, id, sent| {
            let acquired = match <[Value; 3]>::try_from(values) {
                Ok(answers) => read_plain(answers, id, floor, &in_flight),
                Err(values) => {
                    let answer = values.into_iter().next().unwrap_or(Value::Nil);
                    errors::of_answer(answer, id, &in_flight).and_then(|answer| {
                        let acquired = read_acquired(&answer, id, queue_mode)?;
                        if queue_mode != wanted
                            && matches!(acquired.outcome, AcquireOutcome::Busy(_))
                        {
                            // A place in its queue takes a subscription first.
                            errors::note_answered(&in_flight, id);
                            return Err(Failure::not_now("another has it"));
                        }
                        if let (AcquireOutcome::Granted(tokens), Value::Array(_)) =
                            (acquired.outcome, &answer)
                        {
                            noted.fencing_counter.note(id, sent, tokens.last());
                        }
                        Ok(acquired)
                    })
                }
            };
            let alone = matches!(&acquired, Ok(acquired) if matches!(acquired.outcome, AcquireOutcome::Granted(_)));
            contention.note(&full_key, !alone);
            acquired
        };
        server
            .connection
            .send_at_once(&request.in_flight, write, read, then);
        self.0.servers.note_written(server);
    }

    fn prefetch(&self, request: Prefetch) -> StoreFuture<Prefetched> {
        let store = self.clone();
        Box::pin(async move {
            let (store, request) = (&store, &request);
            let prefetch =
                |location: KeyLocation| async move { store.prefetch_at(&location, request).await };
            store.0.servers.ask(&request.full_key, prefetch).await
        })
    }

    fn renew(
        &self,
        batch: Vec<Renew>,
        within: Duration,
    ) -> StoreFuture<Vec<Result<Renewed, Failure>>> {
        let store = self.clone();
        Box::pin(async move { renewals::renew(&store.0.servers, batch, within).await })
    }

    fn release(&self, request: Release) -> StoreFuture<Released> {
        let store = self.clone();
        Box::pin(async move {
            let is_plain = request.in_flight.is_empty();
            let (mut is_first, mut passed) = (true, None);
            let (store, request) = (&store, &request);
            let release = |location: KeyLocation| {
                // What left for the node that redirects, on the same connection, has been dealt with there.
                if !is_first {
                    passed = passed.or_else(|| request.in_flight.only_connection());
                }
                is_first = false;
                async move { store.release_at(&location, request, is_plain).await }
            };
            let mut released = store.0.servers.ask(&request.full_key, release).await?;
            if let Some(passed) = passed
                && request.acquire_in_flight.is_settled_by(passed)
            {
                released.connection = passed;
            }
            Ok(released)
        })
    }

    fn release_at_once(&self, request: &Release, then: Then<Released>) {
        // Before this one is noted there, too.
        let is_plain = request.in_flight.is_empty();
        let location = self.0.servers.location(&request.full_key);
        let write = |out: &mut Vec<u8>, _, _| {
            let call = Call {
                keys: &location.keys(&request.full_key),
                arguments: &release_arguments(&location, request, is_plain),
            };
            RELEASE.write(out, call);
            1
        };
        let read = |values: Vec<Value>, id, _| {
            let value = values.into_iter().next().unwrap_or(Value::Nil);
            read_released(&errors::of_value(value)?, id)
        };
        let connection = location.server.releasing(&request.acquire_in_flight);
        connection.send_at_once(&request.in_flight, write, read, then);
        self.0.servers.note_written(location.server);
    }

    fn flush(&self) {
        self.0.servers.flush();
    }

    fn inspect(&self, full_key: Arc<str>) -> StoreFuture<Option<Sighting>> {
        let store = self.clone();
        Box::pin(async move {
            let (store, full_key) = (&store, &full_key);
            let inspect =
                |location: KeyLocation| async move { store.inspect_at(&location, full_key).await };
            store.0.servers.ask(full_key, inspect).await
        })
    }

    fn force_release(&self, full_key: Arc<str>, known_fencing: u64) -> StoreFuture<()> {
        let store = self.clone();
        Box::pin(async move {
            let (store, full_key) = (&store, &full_key);
            let force_release = |location: KeyLocation| async move {
                store
                    .force_release_at(&location, full_key, known_fencing)
                    .await
            };
            store.0.servers.ask(full_key, force_release).await
        })
    }

    fn check(&self) -> StoreFuture<Health> {
        let store = self.clone();
        Box::pin(async move {
            let mut health = health::check(&store).await?;
            health.warnings.extend(store.0.usage.scope.warning());
            Ok(health)
        })
    }

    fn round_trip(&self) -> Duration {
        self.0.servers.round_trip()
    }
}
