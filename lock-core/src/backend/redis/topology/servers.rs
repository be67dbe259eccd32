//! All servers that keep the locks of a manager, and the redirects to the current location of a lock.

use std::{sync::Arc, time::Duration};

use crate::{
    backend::redis::{
        topology::{
            cluster::Cluster, companions::slot_of, key_location::KeyLocation, server::RedisServer,
            shards::Shards,
        },
        transport::{address::Address, redirect::SLOTS},
    },
    failure::Failure,
    fencing::ClockIndex,
};

/// The maximum number of redirects that one request follows. The move of a slot causes one, and a fail-over may cause more.
pub(crate) const MOST_HOPS: u32 = 5;

/// All servers that keep the locks of a manager.
#[derive(Clone)]
pub(crate) enum RedisServers {
    /// One server that has all keys, as their location.
    One(KeyLocation),
    Shards(Arc<Shards>),
    Several(Arc<Cluster>),
}

impl RedisServers {
    pub(crate) fn location(&self, full_key: &str) -> KeyLocation {
        match self {
            Self::One(location) => location.clone(),
            Self::Shards(shards) => shards.location(full_key),
            Self::Several(cluster) => cluster.location(full_key),
        }
    }

    /// Returns any known server.
    pub(crate) fn any(&self) -> KeyLocation {
        self.location("")
    }

    /// Sends a request to the location of a lock, and repeats it at each location to which the reply redirects.
    pub(crate) async fn ask<T, F>(
        &self,
        full_key: &str,
        mut request: impl FnMut(KeyLocation) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let mut location = self.location(full_key);
        let mut hops = 0;
        loop {
            let reply = request(location.clone()).await;
            let failure = reply.as_ref().err();
            match failure.and_then(|failure| self.follow(&location, failure)) {
                Some(next) if hops < MOST_HOPS => location = next,
                _ => return reply,
            }
            hops += 1;
        }
    }

    /// Returns the location to try instead, if the failure is a redirect.
    pub(crate) fn follow(&self, location: &KeyLocation, failure: &Failure) -> Option<KeyLocation> {
        match self {
            Self::One(..) | Self::Shards(..) => None,
            Self::Several(cluster) => cluster.follow(location, failure),
        }
    }

    /// Returns the number of fencing clocks.
    pub(crate) fn clocks(&self) -> u16 {
        match self {
            Self::One(..) => 1,
            Self::Shards(_) | Self::Several(_) => SLOTS,
        }
    }

    /// Returns the fencing clock of a key: each slot of a cluster has one.
    pub(crate) fn clock_of(&self) -> fn(&str) -> ClockIndex {
        match self {
            Self::One(..) => |_| 0,
            Self::Shards(_) | Self::Several(_) => slot_of,
        }
    }

    /// Returns `true` if there are several servers that can be asked, or to which a key can move.
    pub(crate) fn are_several(&self) -> bool {
        matches!(self, Self::Several(..))
    }

    /// Returns the only server that can be asked, unless there are several.
    pub(crate) fn only(&self) -> Option<&Arc<RedisServer>> {
        match self {
            Self::One(location) => Some(&location.server),
            Self::Shards(shards) => Some(shards.endpoint()),
            Self::Several(_) => None,
        }
    }

    /// Returns each server that has locks, as one location on it.
    pub(crate) fn each(&self) -> Vec<KeyLocation> {
        match self {
            Self::One(_) | Self::Shards(_) => vec![self.any()],
            Self::Several(cluster) => cluster.owners(),
        }
    }

    /// Returns how long a request and its reply take, as measured recently.
    pub(crate) fn round_trip(&self) -> Duration {
        match self {
            Self::One(KeyLocation { server, .. }) => server.connection.round_trip(),
            Self::Shards(shards) => shards.endpoint().connection.round_trip(),
            Self::Several(cluster) => cluster.round_trip(),
        }
    }

    /// Returns the address as it is shown.
    pub(crate) fn address(&self) -> &Address {
        match self {
            Self::One(KeyLocation { server, .. }) => server.connection.address(),
            Self::Shards(shards) => shards.endpoint().connection.address(),
            Self::Several(cluster) => cluster.address(),
        }
    }
}
