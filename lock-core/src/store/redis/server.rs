//! One server, and what is remembered of it.

use std::{sync::Arc, time::Duration};

use crate::store::{
    grants::Grants,
    in_flight::InFlight,
    redis::{
        connection::{
            pub_sub::PubSubDispatch,
            reconnecting::{Purpose, ReconnectingConnection},
        },
        fencing_counter::FencingCounter,
        replica_acks::ReplicaAcks,
        topology::{
            address::Address, sentinel::Sentinels, sharded_subscription::ShardedSubscription,
        },
        without_scripts::Commands,
    },
    timing::Timing,
};

/// One server that keeps locks.
#[derive(Debug)]
pub(super) struct RedisServer {
    pub(super) connection: Arc<ReconnectingConnection>,
    /// For users who may not run scripts.
    pub(super) commands: Commands,
    pub(super) fencing_counter: FencingCounter,
    /// In a cluster.
    pub(super) subscription: Option<ShardedSubscription>,
    /// Where replicas must have a lock.
    pub(super) replica_acks: Option<ReplicaAcks>,
}

/// What every server of a manager is made with.
#[derive(Clone, Debug)]
pub(super) struct ServerSettings {
    pub(super) timing: Timing,
    /// A random name of the manager.
    pub(super) manager: Arc<str>,
    pub(super) grants: Arc<Grants>,
    pub(super) replicas: Option<Replicas>,
}

/// How many replicas must have a lock before it counts, and how long that may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replicas {
    pub(crate) least: u32,
    pub(crate) within: Duration,
}

impl ServerSettings {
    /// A dispatch for grants, or for hints where a grant alone does not count.
    pub(super) fn dispatch(&self, channel: Arc<str>) -> PubSubDispatch {
        let dispatch = PubSubDispatch::new(channel, self.manager.clone(), self.grants.clone());
        if self.replicas.is_some() {
            dispatch.for_hints()
        } else {
            dispatch
        }
    }
}

impl RedisServer {
    /// The one that has all keys.
    pub(super) fn with_all_keys(
        address: Address,
        sentinels: Option<Arc<Sentinels>>,
        dispatch: PubSubDispatch,
        server_settings: &ServerSettings,
    ) -> Self {
        let fencing_counter = match &sentinels {
            Some(_) => FencingCounter::never(),
            None => FencingCounter::while_connected(),
        };
        let connection = ReconnectingConnection::new(
            address,
            sentinels,
            Purpose::Locks,
            server_settings.timing,
            dispatch,
        );
        Self::new(connection, fencing_counter, None, server_settings)
    }

    /// One of a cluster.
    pub(super) fn of_a_cluster(address: Address, server_settings: &ServerSettings) -> Self {
        let dispatch = server_settings.dispatch("".into());
        let subscription = ShardedSubscription::new(address.clone(), server_settings);
        let connection = ReconnectingConnection::new(
            address,
            None,
            Purpose::LocksOnly,
            server_settings.timing,
            dispatch,
        );
        Self::new(
            connection,
            FencingCounter::never(),
            Some(subscription),
            server_settings,
        )
    }

    fn new(
        connection: ReconnectingConnection,
        fencing_counter: FencingCounter,
        subscription: Option<ShardedSubscription>,
        server_settings: &ServerSettings,
    ) -> Self {
        let connection = Arc::new(connection);
        let replica_acks = server_settings
            .replicas
            .map(|replicas| ReplicaAcks::new(&connection, replicas));
        let holding = replica_acks
            .as_ref()
            .map_or(&connection, ReplicaAcks::connection)
            .clone();
        Self {
            commands: Commands::new(connection.clone(), holding),
            replica_acks,
            connection,
            fencing_counter,
            subscription,
        }
    }

    /// Writes what was given to be sent at once.
    pub(super) fn flush(&self) {
        for connection in self
            .replica_acks
            .iter()
            .map(ReplicaAcks::connection)
            .chain([&self.connection])
        {
            connection.flush();
        }
    }

    /// All that lead to it, but those on which only grants are heard.
    pub(super) fn connections(&self) -> Vec<&Arc<ReconnectingConnection>> {
        let replica_acks = self.replica_acks.iter().map(ReplicaAcks::connection);
        replica_acks
            .chain([&self.connection, self.commands.transactions()])
            .collect()
    }

    /// Where locks are taken: on one connection.
    pub(super) fn holding(&self) -> &Arc<ReconnectingConnection> {
        self.replica_acks
            .as_ref()
            .map_or(&self.connection, ReplicaAcks::connection)
    }

    /// Where a lock is let go: on the connection on which it was taken, so that the release never overtakes the acquire;
    /// or past those who wait for replicas there, if nothing of the acquire is under way any more.
    pub(super) fn releasing(&self, acquire_in_flight: &InFlight) -> &Arc<ReconnectingConnection> {
        if acquire_in_flight.is_empty() {
            &self.connection
        } else {
            self.holding()
        }
    }
}
