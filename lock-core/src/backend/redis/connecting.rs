//! Creating a store from a url, and making its first connection, which shows the kind of server and the rights of its user.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use redis::Value;

use crate::{
    backend::{
        Reply,
        grants::{Grants, MessageKind},
        owner_token::random_name,
        redis::{
            protocol::{
                pub_sub::PubSubDispatch,
                redis_store::{MARKS, RedisState, RedisStore, Settings},
            },
            topology::{
                ServerSettings, Topology,
                cluster::Cluster,
                companions::Names,
                key_location::KeyLocation,
                sentinel::Sentinels,
                server::{RedisServer, watch_sentinels},
                servers::RedisServers,
                shards::Shards,
            },
            transport::{
                CLOCK,
                address::{Address, Named},
                command::Arg::Text,
                errors,
                handshake::Purpose,
                known_primary::PrimaryFinder,
                reconnecting::ReconnectingConnection,
            },
        },
    },
    error::LockError,
    failure::Failure,
};

impl RedisStore {
    /// Creates a store, which connects with the first request. `grants` is where grants are delivered; `None` for one of
    /// several servers, of which none can grant a lock that a majority has.
    pub(crate) fn new(
        server: &Named,
        settings: &Settings,
        grants: Option<Arc<Grants>>,
    ) -> Result<Self, LockError> {
        let is_one_of_several = grants.is_none();
        let label = settings.label.as_ref();
        let topology = Topology::of(server, &settings.access, &settings.security, label)?;
        let manager = Arc::<str>::from(random_name());
        // A grant is only a hint if replicas must have a lock before it counts.
        let kind = match settings.replicas {
            Some(_) => MessageKind::Hint,
            None => MessageKind::Grant,
        };
        let dispatch = PubSubDispatch::new(manager.clone(), grants.unwrap_or_default(), kind);
        let server_settings = ServerSettings {
            timing: settings.timing,
            manager,
            events: Arc::new(dispatch),
            replicas: settings.replicas,
        };
        let servers = match topology {
            Topology::Single(address) => {
                RedisServers::One(one_server(address, None, &server_settings))
            }
            Topology::Shards(_) if settings.replicas.is_some() => {
                return Err(LockError::invalid(
                    "min_replicas_acked is not possible with `?sharded=true`: it is unknown which shard's replicas acknowledge",
                ));
            }
            Topology::Shards(address) => {
                let location = one_server(address, None, &server_settings);
                let shards = Shards::behind(location.server, &server_settings.manager);
                RedisServers::Shards(Arc::new(shards))
            }
            Topology::Sentinel(service) => {
                let sentinels = Sentinels::new(&service, server_settings.timing);
                let sentinels = Some(Arc::new(sentinels) as _);
                let location = one_server(service.primary, sentinels, &server_settings);
                let watch = watch_sentinels(Arc::downgrade(&location.server));
                settings.executor.spawn(watch);
                RedisServers::One(location)
            }
            Topology::Cluster(seeds) => {
                RedisServers::Several(Arc::new(Cluster::new(seeds, server_settings)))
            }
        };
        Ok(Self(Arc::new(RedisState {
            executor: settings.executor.clone(),
            servers,
            contended: (0..MARKS).map(|_| AtomicBool::new(false)).collect(),
            timing: settings.timing,
            scope: settings.scope.clone(),
            is_one_of_several,
        })))
    }

    /// Like [`greet`](Self::greet), and then makes the request connection of the calling task's runtime. Without that
    /// connection, requests use the connection of the manager's thread.
    pub(crate) fn greet_for_caller(&self) -> Reply<()> {
        let store = self.clone();
        // Locks that replicas must acknowledge are taken on a separate connection, so this one would not be used.
        let server = self.0.servers.only();
        let requests = server
            .filter(|server| server.replica_acks.is_none())
            .and_then(|server| server.for_caller(&self.0.executor));
        Box::pin(async move {
            store.greet().await?;
            if let Some(requests) = requests {
                drop(requests.current().await);
            }
            Ok(())
        })
    }

    /// Opens the first connection, and verifies which server it leads to, and that its user has the rights that locks
    /// need.
    pub(crate) async fn greet(&self) -> Result<(), Failure> {
        let within = self.0.timing.connect_timeout + self.0.timing.command_timeout;
        let until = CLOCK.now().after(within);
        let reached = self.reach(within).await;
        self.try_out(reached, until).await?;
        if let Some(warning) = self.0.scope.warning() {
            tracing::warn!(server = self.0.servers.address().shown(), "{warning}");
        }
        Ok(())
    }

    async fn reach(&self, within: Duration) -> Result<(), Failure> {
        let connection = match &self.0.servers {
            RedisServers::One(KeyLocation { server, .. }) => &server.connection,
            RedisServers::Shards(shards) => &shards.endpoint().connection,
            RedisServers::Several(cluster) => return cluster.refresh(within).await,
        };
        match connection.send(&[&[Text("PING")]], within, None).await? {
            (_, Value::SimpleString(pong)) if pong == "PONG" => Ok(()),
            (_, Value::ServerError(error)) => Err(match error.code() {
                "NOAUTH" | "NOPERM" => errors::refused(&error, connection.address()),
                _ => errors::answered(&error),
            }),
            _ => Err(errors::no_redis(connection.address().shown())),
        }
    }
}

/// Returns the location of all keys on a server that has all of them.
fn one_server(
    address: Address,
    sentinels: Option<Arc<dyn PrimaryFinder>>,
    server_settings: &ServerSettings,
) -> KeyLocation {
    let names = Names::of_a_server(&server_settings.manager);
    let events = server_settings.events.of_channel(names.grants.clone());
    let (purpose, timing) = (Purpose::Locks, server_settings.timing);
    let connection = ReconnectingConnection::new(address, sentinels, purpose, timing, events);
    let server = RedisServer::new(connection, None, server_settings.replicas);
    KeyLocation::at(Arc::new(server), Arc::new(names), 0)
}
