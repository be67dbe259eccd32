//! Locks on Redis and Valkey. The only place that builds a Redis command.

use std::{sync::Arc, time::Duration};

use crate::{
    backend::{
        Acquire, Answered, Backend, MOST_BATCHES, Operate, Page, PagePosition, Release, Renew,
        Reply, Traits,
        redis::protocol::{
            acquire, health, listing,
            redis_store::{Acked, RedisStore},
            release, renewals,
        },
    },
    engine::reply::{AcquireOutcome, Contended, ReleaseOutcome, Renewed},
    failure::Failure,
    fencing::KnownTokens,
    inspect::{Health, NAMED, Sighting},
};

mod connecting;
pub(crate) mod protocol;
pub(crate) mod topology;
pub(crate) mod transport;
mod without_scripts;

impl Backend for RedisStore {
    fn acquire(&self, request: Acquire) -> Reply<Answered<AcquireOutcome>> {
        acquire::acquire(self, request, Acked::Must)
    }

    fn renew(&self, batch: Vec<Renew>, within: Duration) -> Reply<Vec<Result<Renewed, Failure>>> {
        let store = self.clone();
        Box::pin(async move {
            let renewals = renewals::renew(&store.0.servers, &batch, within).await;
            for (request, renewed) in batch.iter().zip(&renewals) {
                if let Ok(Renewed::Extended {
                    contended: Contended::OthersQueued,
                    ..
                }) = renewed
                {
                    // Makes the release grant the lock to the next entry.
                    store.note_others(&request.owner.key, true);
                }
            }
            Ok(renewals)
        })
    }

    fn release(&self, request: Release) -> Reply<Answered<ReleaseOutcome>> {
        release::release(self, request)
    }

    fn traits(&self) -> Traits {
        let (servers, by_transactions) = (&self.0.servers, self.renews_by_transactions());
        Traits {
            clocks: servers.clocks(),
            clock_of: servers.clock_of(),
            batches: if by_transactions { 1 } else { MOST_BATCHES },
            round_trip: servers.round_trip() * if by_transactions { 2 } else { 1 },
            ..Traits::default()
        }
    }
}

impl Operate for RedisStore {
    fn inspect(&self, full_key: Arc<str>) -> Reply<Option<Sighting>> {
        self.look_at(full_key, NAMED)
    }

    fn list(&self, full_prefix: Arc<str>, from: PagePosition) -> Reply<Page> {
        let store = self.clone();
        Box::pin(async move { listing::page(&store, &full_prefix, from).await })
    }

    fn force_release(&self, full_key: Arc<str>, known_fencing: u64) -> Reply<()> {
        self.force_release_key(full_key, known_fencing)
    }

    fn forget(&self, full_key: Arc<str>) -> Reply<()> {
        self.forget_result(full_key)
    }

    fn check(&self, known_tokens: Arc<KnownTokens>) -> Reply<Health> {
        let store = self.clone();
        Box::pin(async move { health::check(&store, &known_tokens).await })
    }
}

impl RedisStore {
    /// Returns `true` if a batch of renewals is a transaction. It takes two round trips, and a connection runs one transaction
    /// at a time, so further batches would wait for that connection until they are late. In a cluster each key is a
    /// transaction, and a node that hangs must not delay the renewals on others.
    fn renews_by_transactions(&self) -> bool {
        let Some(server) = self.0.servers.only() else {
            return false;
        };
        let current = server.connection.snapshot();
        current
            .and_then(|current| current.known.capabilities)
            .is_some_and(|known| !known.scripts)
    }
}
