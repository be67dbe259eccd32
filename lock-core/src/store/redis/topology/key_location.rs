//! Where a lock is kept, and following the servers' word to where it is kept now.

use std::{fmt, sync::Arc, time::Duration};

use crate::store::{
    Failure,
    in_flight::{ConnectionId, InFlight},
    redis::{
        capabilities::Capabilities,
        connection::{
            reconnecting::ReconnectingConnection,
            resp::{
                Arg::{self, Joined, Text},
                Value,
            },
        },
        errors,
        scripts::{Call, Lua, NodeRole},
        server::RedisServer,
        topology::{
            address::Address, cluster::Cluster, sharded_subscription::GrantDelivery, slots::Names,
        },
        without_scripts::Counter,
    },
};

/// How often one request follows a redirection: a slot moves once, and a fail-over may come on top.
pub(crate) const MOST_HOPS: u32 = 5;

/// All servers that keep the locks of a manager.
#[derive(Clone)]
pub(crate) enum RedisServers {
    /// One that has all keys.
    One(Arc<RedisServer>, Arc<Names>),
    Several(Arc<Cluster>),
}

/// Where a lock is kept, and what its companions are called there.
#[derive(Clone)]
pub(crate) struct KeyLocation {
    pub(crate) server: Arc<RedisServer>,
    pub(crate) names: Arc<Names>,
    /// In a cluster.
    pub(crate) slot: u16,
    pub(crate) node_role: NodeRole,
}

/// One request on its way to where its lock is kept.
pub(crate) struct RedirectedRequest<'a> {
    servers: &'a RedisServers,
    pub(crate) location: KeyLocation,
    hops: u32,
}

impl KeyLocation {
    /// One place on a server.
    pub(crate) fn at(server: Arc<RedisServer>, names: Arc<Names>) -> Self {
        Self {
            server,
            names,
            slot: 0,
            node_role: NodeRole::SlotOwner,
        }
    }

    pub(crate) fn counter(&self) -> Counter<'_> {
        Counter {
            fence: &self.names.fence,
            fencing_counter: &self.server.fencing_counter,
        }
    }

    /// The lock and its companions: the fencing counter, and the queue, which is named from the full key, whatever the
    /// prefix, so that managers with different prefixes that mean the same lock stand in the same queue.
    pub(crate) fn keys<'a>(&'a self, full_key: &'a str) -> [Arg<'a>; 3] {
        [
            Text(full_key),
            Text(&self.names.fence),
            Joined(&self.names.queue, full_key),
        ]
    }

    /// Whether grants for locks here arrive now.
    pub(crate) fn delivery(&self) -> GrantDelivery {
        match &self.server.subscription {
            None if self.server.connection.has_grants() => GrantDelivery::Pushed,
            None => GrantDelivery::Unsupported,
            // Its slot has not arrived yet: nobody can subscribe here, nor is it told where the slot comes from.
            Some(_) if self.node_role == NodeRole::MigrationTarget => GrantDelivery::Unsupported,
            Some(subscription) => subscription.delivery(&self.names.grants),
        }
    }

    /// Has grants for locks here arrive.
    pub(crate) async fn listen(&self, within: Duration) -> Result<GrantDelivery, Failure> {
        match &self.server.subscription {
            None => Ok(self.delivery()),
            Some(_) if self.node_role == NodeRole::MigrationTarget => {
                Ok(GrantDelivery::Unsupported)
            }
            Some(subscription) => subscription.listen(&self.names.grants, within).await,
        }
    }

    /// Runs a script where locks are taken; an error that the server answers is an answer.
    pub(crate) async fn ask(
        &self,
        script: &Lua,
        call: Call<'_>,
        in_flight: &InFlight,
    ) -> Result<(ConnectionId, Value), Failure> {
        let connection = self.server.holding();
        let within = connection.timing().command_timeout;
        script
            .ask(connection, self.node_role, call, within, Some(in_flight))
            .await
    }

    /// Runs a script on one of the server's links; an error that the server answers is a failure.
    pub(crate) async fn run(
        &self,
        connection: &Arc<ReconnectingConnection>,
        script: &Lua,
        call: Call<'_>,
        in_flight: Option<&InFlight>,
    ) -> Result<(ConnectionId, Value), Failure> {
        let within = connection.timing().command_timeout;
        let (id, value) = script
            .ask(connection, self.node_role, call, within, in_flight)
            .await?;
        Ok((id, errors::of_value(value)?))
    }

    /// By which commands locks are kept here; connects if need be.
    pub(crate) async fn capabilities(&self, within: Duration) -> Result<Capabilities, Failure> {
        self.server.connection.capabilities(within).await
    }
}

impl RedisServers {
    pub(crate) fn location(&self, full_key: &str) -> KeyLocation {
        match self {
            Self::One(server, names) => KeyLocation::at(server.clone(), names.clone()),
            Self::Several(cluster) => cluster.location(full_key),
        }
    }

    /// A server, whichever is known.
    pub(crate) fn any(&self) -> KeyLocation {
        self.location("")
    }

    pub(crate) fn redirected(&self, full_key: &str) -> RedirectedRequest<'_> {
        RedirectedRequest {
            servers: self,
            location: self.location(full_key),
            hops: 0,
        }
    }

    /// Where to go instead, if that is what the failure says.
    pub(crate) fn follow(&self, location: &KeyLocation, failure: &Failure) -> Option<KeyLocation> {
        match self {
            Self::One(..) => None,
            Self::Several(cluster) => cluster.follow(location, failure),
        }
    }

    pub(crate) fn are_several(&self) -> bool {
        matches!(self, Self::Several(_))
    }

    /// Each server that has locks, as one place there.
    pub(crate) fn each(&self) -> Vec<KeyLocation> {
        match self {
            Self::One(..) => vec![self.any()],
            Self::Several(cluster) => cluster.owners(),
        }
    }

    /// Notes that something is to be flushed.
    pub(crate) fn note_written(&self, server: Arc<RedisServer>) {
        if let Self::Several(cluster) = self {
            cluster.note_written(server);
        }
    }

    pub(crate) fn flush(&self) {
        match self {
            Self::One(server, _) => server.flush(),
            Self::Several(cluster) => cluster.flush(),
        }
    }

    /// How long a request and its answer take, as measured lately.
    pub(crate) fn round_trip(&self) -> Duration {
        match self {
            Self::One(server, _) => server.connection.round_trip(),
            Self::Several(cluster) => cluster.round_trip(),
        }
    }

    /// What is shown of the url.
    pub(crate) fn address(&self) -> &Address {
        match self {
            Self::One(server, _) => server.connection.address(),
            Self::Several(cluster) => cluster.address(),
        }
    }
}

impl fmt::Debug for RedisServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address().fmt(f)
    }
}

impl RedirectedRequest<'_> {
    /// Goes on to where the failure says; returns whether there is somewhere to go.
    pub(crate) fn follow_redirect(&mut self, failure: &Failure) -> bool {
        let Some(next) = self.servers.follow(&self.location, failure) else {
            return false;
        };
        self.location = next;
        self.hops += 1;
        self.hops <= MOST_HOPS
    }
}
