//! Where a lock is kept, and following the servers' word to where it is kept now.

use std::{fmt, sync::Arc, time::Duration};

use crate::store::{
    Failure,
    in_flight::{ConnectionId, InFlight},
    redis::{
        capabilities::Ways,
        connection::{
            reconnecting::Link,
            resp::{
                Value,
                Word::{self, Joined, Text},
            },
        },
        errors,
        scripts::{Asking, Call, Lua},
        server::Server,
        topology::{address::Address, cluster::Cluster, sharded_subscription::Hears, slots::Names},
        without_scripts::Counter,
    },
};

/// How often one request follows a redirection: a slot moves once, and a fail-over may come on top.
pub(crate) const MOST_HOPS: u32 = 5;

/// All servers that keep the locks of a manager.
#[derive(Clone)]
pub(crate) enum Servers {
    /// One that has all keys.
    One(Arc<Server>, Arc<Names>),
    Several(Arc<Cluster>),
}

/// Where a lock is kept, and what its companions are called there.
#[derive(Clone)]
pub(crate) struct Home {
    pub(crate) server: Arc<Server>,
    pub(crate) names: Arc<Names>,
    /// In a cluster.
    pub(crate) slot: u16,
    pub(crate) asking: Asking,
}

/// One request on its way to where its lock is kept.
pub(crate) struct Way<'a> {
    servers: &'a Servers,
    pub(crate) home: Home,
    hops: u32,
}

impl Home {
    /// One place on a server.
    pub(crate) fn at(server: Arc<Server>, names: Arc<Names>) -> Self {
        Self {
            server,
            names,
            slot: 0,
            asking: Asking::ForItsOwn,
        }
    }

    pub(crate) fn counter(&self) -> Counter<'_> {
        Counter {
            fence: &self.names.fence,
            counting: &self.server.counting,
        }
    }

    /// The lock and its companions: the fencing counter, and the queue, which is named from the full key, whatever the
    /// prefix, so that managers with different prefixes that mean the same lock stand in the same queue.
    pub(crate) fn keys<'a>(&'a self, full_key: &'a str) -> [Word<'a>; 3] {
        [
            Text(full_key),
            Text(&self.names.fence),
            Joined(&self.names.queue, full_key),
        ]
    }

    /// Whether grants for locks here arrive now.
    pub(crate) fn hears(&self) -> Hears {
        match &self.server.listener {
            None if self.server.link.has_grants() => Hears::Yes,
            None => Hears::Never,
            // Its slot has not arrived yet: nobody can subscribe here, nor is it told where the slot comes from.
            Some(_) if self.asking == Asking::ForAGuest => Hears::Never,
            Some(listener) => listener.hears(&self.names.grants),
        }
    }

    /// Has grants for locks here arrive.
    pub(crate) async fn listen(&self, within: Duration) -> Result<Hears, Failure> {
        match &self.server.listener {
            None => Ok(self.hears()),
            Some(_) if self.asking == Asking::ForAGuest => Ok(Hears::Never),
            Some(listener) => listener.listen(&self.names.grants, within).await,
        }
    }

    /// Runs a script where locks are taken; an error that the server answers is an answer.
    pub(crate) async fn ask(
        &self,
        script: &Lua,
        call: Call<'_>,
        in_flight: &InFlight,
    ) -> Result<(ConnectionId, Value), Failure> {
        let link = self.server.holding();
        let within = link.timing().command_timeout;
        script
            .ask(link, self.asking, call, within, Some(in_flight))
            .await
    }

    /// Runs a script on one of the server's links; an error that the server answers is a failure.
    pub(crate) async fn run(
        &self,
        link: &Arc<Link>,
        script: &Lua,
        call: Call<'_>,
        in_flight: Option<&InFlight>,
    ) -> Result<(ConnectionId, Value), Failure> {
        let within = link.timing().command_timeout;
        let (id, value) = script
            .ask(link, self.asking, call, within, in_flight)
            .await?;
        Ok((id, errors::of_value(value)?))
    }

    /// By which commands locks are kept here; connects if need be.
    pub(crate) async fn ways(&self, within: Duration) -> Result<Ways, Failure> {
        self.server.link.ways(within).await
    }
}

impl Servers {
    pub(crate) fn home(&self, full_key: &str) -> Home {
        match self {
            Self::One(server, names) => Home::at(server.clone(), names.clone()),
            Self::Several(cluster) => cluster.home(full_key),
        }
    }

    /// A server, whichever is known.
    pub(crate) fn any(&self) -> Home {
        self.home("")
    }

    pub(crate) fn way(&self, full_key: &str) -> Way<'_> {
        Way {
            servers: self,
            home: self.home(full_key),
            hops: 0,
        }
    }

    /// Where to go instead, if that is what the failure says.
    pub(crate) fn follow(&self, home: &Home, failure: &Failure) -> Option<Home> {
        match self {
            Self::One(..) => None,
            Self::Several(cluster) => cluster.follow(home, failure),
        }
    }

    pub(crate) fn are_several(&self) -> bool {
        matches!(self, Self::Several(_))
    }

    /// Each server that has locks, as one place there.
    pub(crate) fn each(&self) -> Vec<Home> {
        match self {
            Self::One(..) => vec![self.any()],
            Self::Several(cluster) => cluster.owners(),
        }
    }

    /// Notes that something is to be flushed.
    pub(crate) fn note_written(&self, server: Arc<Server>) {
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
            Self::One(server, _) => server.link.round_trip(),
            Self::Several(cluster) => cluster.round_trip(),
        }
    }

    /// What is shown of the url.
    pub(crate) fn address(&self) -> &Address {
        match self {
            Self::One(server, _) => server.link.address(),
            Self::Several(cluster) => cluster.address(),
        }
    }
}

impl fmt::Debug for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address().fmt(f)
    }
}

impl Way<'_> {
    /// Goes on to where the failure says; returns whether there is somewhere to go.
    pub(crate) fn goes_on(&mut self, failure: &Failure) -> bool {
        let Some(next) = self.servers.follow(&self.home, failure) else {
            return false;
        };
        self.home = next;
        self.hops += 1;
        self.hops <= MOST_HOPS
    }
}
