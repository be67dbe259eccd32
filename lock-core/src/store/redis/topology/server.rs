//! One server, and what is remembered of it.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::time::timeout;

use crate::runtime::executor::Executor;
use crate::store::redis::topology::sharded_subscription::ShardedSubscription;
use crate::store::{
    Release,
    in_flight::{ConnectionId, InFlight},
    redis::{
        connection::{
            ready::Ready, handshake::Purpose, known_primary::Need,
            reconnecting::ReconnectingConnection,
        },
        topology::{
            replica_acks::ReplicaAcks, request_connections::RequestConnections, settings::Replicas,
        },
    },
};

/// How often the sentinels are asked whether the primary has changed.
const WATCH: Duration = Duration::from_secs(1);

/// One server that keeps locks.
#[derive(Debug)]
pub(crate) struct RedisServer {
    /// The connection of the manager's thread.
    pub(crate) connection: Arc<ReconnectingConnection>,
    /// The connections of users' runtimes.
    pub(crate) requests: RequestConnections,
    /// For users without the right to run scripts: only transactions are sent on it.
    pub(crate) changes: Arc<ReconnectingConnection>,
    /// The same for renewals. Hundreds of releases, one after the other, must not let a lease run out.
    pub(crate) renewals: Arc<ReconnectingConnection>,
    /// The subscriptions to grants at this node, in a cluster.
    pub(crate) subscription: Option<ShardedSubscription>,
    /// Waits for replicas, if they must have a lock before it counts.
    pub(crate) replica_acks: Option<ReplicaAcks>,
}

impl RedisServer {
    /// `subscription`: for a node of a cluster.
    pub(crate) fn new(
        connection: ReconnectingConnection,
        subscription: Option<ShardedSubscription>,
        replicas: Option<Replicas>,
    ) -> Self {
        let connection = Arc::new(connection);
        let another = || connection.another(Purpose::OtherCommands, connection.timing());
        Self {
            changes: Arc::new(another()),
            renewals: Arc::new(another()),
            replica_acks: replicas.map(|replicas| ReplicaAcks::new(&connection, replicas)),
            requests: RequestConnections::new(connection.clone()),
            connection,
            subscription,
        }
    }

    /// All connections to it, except those on which only grants arrive.
    pub(crate) fn connections(&self) -> Vec<Arc<ReconnectingConnection>> {
        let replica_acks = self.replica_acks.iter().map(|acks| &acks.connection);
        let fixed = replica_acks.chain([&self.connection, &self.changes, &self.renewals]);
        fixed.cloned().chain(self.requests.all()).collect()
    }

    /// The connection on which locks are taken.
    pub(crate) fn holding(&self) -> &Arc<ReconnectingConnection> {
        let acks = self.replica_acks.as_ref();
        acks.map_or(&self.connection, |acks| &acks.connection)
    }

    /// The connection for releasing a lock: the one on which it was taken, so that the release never overtakes the acquire. If no
    /// request of the acquire is in flight any more, the connection that does not wait for replicas is used.
    pub(crate) fn releasing(&self, acquire_in_flight: &InFlight) -> Arc<ReconnectingConnection> {
        if acquire_in_flight.is_empty() {
            return self.connection.clone();
        }
        let on = acquire_in_flight.only_connection();
        let on = on.and_then(|id| self.requests.with_id(id));
        on.map_or_else(|| self.holding().clone(), |ready| ready.reconnecting)
    }

    /// The connection for a request that one reply is enough for, if it is ready. It is that on which earlier requests are in flight,
    /// else that of the calling task's runtime.
    pub(crate) fn ready(&self, behind: Option<ConnectionId>, executor: &Executor) -> Option<Ready> {
        let behind = behind.and_then(|id| self.requests.with_id(id));
        behind.or_else(|| self.requests.of_caller(executor))
    }

    /// The same for a release. While the acquire may be in flight, its connection counts.
    pub(crate) fn ready_to_release(&self, request: &Release, executor: &Executor) -> Option<Ready> {
        if request.acquire_in_flight().is_empty() && self.replica_acks.is_none() {
            return self.ready(request.in_flight().only_connection(), executor);
        }
        self.releasing(request.acquire_in_flight()).ready()
    }
}

/// Makes all connections leave a primary that was replaced. Sentinels cut the connections of a primary that they can reach. A
/// primary that only this process can still reach would go on giving out locks that no other client respects.
pub(crate) async fn watch_sentinels(server: Weak<RedisServer>) {
    let sentinels = server.upgrade();
    let sentinels = sentinels.and_then(|server| server.connection.sentinels().cloned());
    let Some(sentinels) = sentinels else {
        return;
    };
    // Until the manager ends.
    loop {
        // Sooner after a silence, in which a fail-over may have begun and ended.
        drop(timeout(WATCH, sentinels.doubted().notified()).await);
        let Some(server) = server.upgrade() else {
            return;
        };
        let connections = server.connections();
        if !connections.iter().any(|connection| connection.is_up()) {
            continue;
        }
        let Ok(now) = sentinels.clone().primary(Need::Watch).await else {
            continue;
        };
        for connection in connections {
            connection.leave_if_replaced(&now);
        }
    }
}
