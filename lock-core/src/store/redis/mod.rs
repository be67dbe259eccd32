//! Locks on one Redis or Valkey primary. The only place that builds a Redis command.

use std::{sync::Arc, time::Duration};

use crate::{
    fencing::{ClockIndex, KnownTokens},
    inspect::{Health, NAMED, Sighting},
    store::{
        Acquire, Acquired, CertainRelease, Contended, Failure, Page, PagePosition, Release,
        ReleaseOutcome, Released, Renew, Renewed, Store, StoreFuture,
        until_certain::{self, OneServer},
    },
};

mod address;
mod at_location;
mod at_once;
mod connecting;
mod connection;
mod contention;
#[cfg(all(test, unix))]
mod crate_facts;
mod gathered;
mod health;
mod listing;
mod native_release;
mod redis_store;
mod renewals;
mod rights;
mod scripts;
mod together;
mod topology;
mod trial;
pub(crate) mod voting_server;
mod without_scripts;

pub(crate) use address::{Named, client::OwnClient, transport::Security};
pub(crate) use redis_store::{RedisStore, Scope, Settings};
pub(crate) use topology::{Access, settings::Replicas};

impl OneServer for RedisStore {
    async fn release_once(&self, request: &Release) -> Result<Released, Failure> {
        match self.release_at_once(request).await {
            Ok(Some(released)) => Ok(released),
            Err(failure) if !failure.is_definite() => Err(failure),
            // For example, the server does not know the script yet.
            Ok(None) | Err(_) => self.let_go_on_the_manager(request.clone()).await,
        }
    }
}

impl Store for RedisStore {
    fn acquire(&self, request: Acquire) -> StoreFuture<Acquired> {
        let store = self.clone();
        Box::pin(async move {
            let may_have_it = match store.acquire_at_once(&request).await {
                Ok(Some(acquired)) => return Ok(acquired),
                Ok(None) => false,
                // A retry is safe.
                Err(failure) => !failure.is_definite(),
            };
            let owner = request.owner.clone();
            let left_on = owner.in_flight.only_connection();
            let reply = store.take_on_the_manager(request).await;
            if !may_have_it {
                return reply;
            }
            // The refusal of the second request says nothing about the first one, which may have taken the key.
            reply.map_err(|failure| {
                if let (true, Some(left_on)) = (owner.in_flight.is_empty(), left_on) {
                    owner.in_flight.note_sent_on(left_on);
                }
                failure.executed_in_part()
            })
        })
    }

    fn renew(
        &self,
        batch: Vec<Renew>,
        within: Duration,
    ) -> StoreFuture<Vec<Result<Renewed, Failure>>> {
        let store = self.clone();
        Box::pin(async move {
            let renewals = renewals::renew(&store.0.servers, &batch, within).await;
            for (request, renewed) in batch.iter().zip(&renewals) {
                if let Ok(Renewed::Extended {
                    contended: Contended::OthersQueued,
                    ..
                }) = renewed
                {
                    // The release is to grant the lock, too.
                    store.0.contention.of(&request.owner.key).note(true);
                }
            }
            Ok(renewals)
        })
    }

    fn release(&self, release: CertainRelease) -> StoreFuture<ReleaseOutcome> {
        Box::pin(until_certain::release(self.clone(), release))
    }

    fn inspect(&self, full_key: Arc<str>) -> StoreFuture<Option<Sighting>> {
        self.look_at(full_key, NAMED)
    }

    fn list(&self, full_prefix: Arc<str>, from: PagePosition) -> StoreFuture<Page> {
        let store = self.clone();
        Box::pin(async move {
            let (servers, within) = (&store.0.servers, store.within());
            let inspect = |full_key| store.look_at(full_key, 0);
            listing::page(servers, within, inspect, &full_prefix, from).await
        })
    }

    fn force_release(&self, full_key: Arc<str>, known_fencing: u64) -> StoreFuture<()> {
        let store = self.clone();
        Box::pin(async move {
            let force_release = async |location| {
                let forced = store.force_release_at(&location, &full_key, known_fencing);
                forced.await
            };
            store.0.servers.ask(&full_key, force_release).await
        })
    }

    fn forget(&self, full_key: Arc<str>) -> StoreFuture<()> {
        self.forget_on_the_manager(full_key)
    }

    fn check(&self, known_tokens: Arc<KnownTokens>) -> StoreFuture<Health> {
        let store = self.clone();
        Box::pin(async move {
            let mut health = health::check(&store, &known_tokens).await?;
            // With several servers, this warning is given once for all of them.
            if !store.0.is_one_of_several {
                health.warnings.extend(store.0.scope.warning());
            }
            Ok(health)
        })
    }

    fn clocks(&self) -> u16 {
        self.0.servers.clocks()
    }

    fn clock_of(&self, full_key: &str) -> ClockIndex {
        self.0.servers.clock_of(full_key)
    }

    fn round_trip(&self) -> Duration {
        self.0.servers.round_trip()
    }
}
