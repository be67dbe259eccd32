//! The nodes of a cluster, and the map from slots to nodes.
//!
//! There is one connection to each node that is used. A redirect from a node is followed at once. After a redirect of a slot,
//! or a transient failure of a node, the whole map is requested. No request is repeated without its caller's knowledge.
//!
//! Rejected: a client library that follows redirects. It sends a request again on another connection, so a clean-up would not
//! know on which connection to follow the request.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{task::JoinSet, time::timeout};

use crate::{
    backend::redis::{
        topology::{
            Seeds, ServerSettings,
            companions::{SlotNames, slot_of},
            key_location::KeyLocation,
            server::RedisServer,
            sharded_subscription::ShardedSubscription,
            slot_ranges::{self, SlotRange},
        },
        transport::{
            address::Address,
            errors,
            handshake::Purpose,
            reconnecting::ReconnectingConnection,
            redirect::{NodeRole, SLOTS},
        },
    },
    failure::Failure,
    runtime::{executor::spawn_detached, mutex::Mutex},
};

/// The map is requested no more often than this.
const REFRESH_PAUSE: Duration = Duration::from_millis(100);

/// After this long without a reply, the next node is asked, too.
const REFRESH_PATIENCE: Duration = Duration::from_millis(250);

/// The nodes of a cluster.
pub(crate) struct Cluster {
    seeds: Seeds,
    server_settings: ServerSettings,
    names: SlotNames,
    map: Mutex<SlotMap>,
    /// `true` if the map is being requested, or was a moment ago.
    is_refreshing: AtomicBool,
}

struct SlotMap {
    /// By host and port.
    servers: HashMap<(String, u16), Arc<RedisServer>>,
    /// The owner of each slot.
    owners: Vec<Option<Arc<RedisServer>>>,
}

impl Cluster {
    pub(crate) fn new(seeds: Seeds, server_settings: ServerSettings) -> Self {
        Self {
            seeds,
            names: SlotNames::with_channels(&server_settings.manager),
            server_settings,
            map: Mutex::new(SlotMap {
                servers: HashMap::new(),
                owners: vec![None; usize::from(SLOTS)],
            }),
            is_refreshing: AtomicBool::new(false),
        }
    }

    /// Returns the address as it is shown.
    pub(crate) fn address(&self) -> &Address {
        &self.seeds.shown
    }

    /// Returns the key location of a lock, as far as it is known.
    pub(crate) fn location(&self, full_key: &str) -> KeyLocation {
        let slot = slot_of(full_key);
        let mut map = self.map.lock();
        let owner = map.owners[usize::from(slot)].clone();
        // If no owner of the slot is known, any node redirects to the owner, or reports that there is none.
        let server = owner.or_else(|| map.servers.values().next().cloned());
        let server = server.unwrap_or_else(|| self.server_at(&mut map, &self.seeds.nodes[0]));
        drop(map);
        KeyLocation::at(server, self.names.of(slot), slot)
    }

    /// Returns the location to try instead, if the failure is a redirect. If the failure shows that the map is stale, the map
    /// is requested.
    ///
    /// Called on the manager's thread only.
    pub(crate) fn follow(
        self: &Arc<Self>,
        location: &KeyLocation,
        failure: &Failure,
    ) -> Option<KeyLocation> {
        let Some(redirect) = errors::redirect(failure) else {
            if failure.is_transient() {
                self.refresh_soon();
            }
            return None;
        };
        let asked = location.server.connection.address();
        let host = match asked.place() {
            Some((own, _)) if matches!(&*redirect.host, "" | "?") => own,
            _ => &redirect.host,
        };
        let mut map = self.map.lock();
        let server = self.server_at(&mut map, &asked.at(host, redirect.port));
        if redirect.node_role == NodeRole::ServesSlot {
            map.owners[usize::from(redirect.slot)] = Some(server.clone());
            drop(map);
            self.refresh_soon();
        }
        Some(KeyLocation {
            server,
            node_role: redirect.node_role,
            ..location.clone()
        })
    }

    /// Returns the nodes that have slots, each as the location of its first slot.
    pub(crate) fn owners(&self) -> Vec<KeyLocation> {
        let map = self.map.lock();
        let mut owners: Vec<KeyLocation> = Vec::new();
        for (slot, owner) in (0..SLOTS).zip(&map.owners) {
            if let Some(owner) = owner
                && !owners.iter().any(|known| Arc::ptr_eq(&known.server, owner))
            {
                owners.push(KeyLocation::at(owner.clone(), self.names.of(slot), slot));
            }
        }
        owners
    }

    pub(crate) fn round_trip(&self) -> Duration {
        let map = self.map.lock();
        let round_trips = map
            .servers
            .values()
            .map(|server| server.connection.round_trip());
        round_trips.max().unwrap_or_default()
    }

    fn refresh_soon(self: &Arc<Self>) {
        if self.is_refreshing.swap(true, Ordering::AcqRel) {
            return;
        }
        let cluster = Arc::downgrade(self);
        let within = self.server_settings.timing.command_timeout;
        spawn_detached(async move {
            if let Some(cluster) = cluster.upgrade() {
                // The next caller that needs the map asks again if this failed.
                if let Err(failure) = cluster.refresh(within).await {
                    tracing::debug!(?failure, "no node sent the map of the slots");
                }
            }
            tokio::time::sleep(REFRESH_PAUSE).await;
            if let Some(cluster) = cluster.upgrade() {
                cluster.is_refreshing.store(false, Ordering::Release);
            }
        });
    }

    /// Asks nodes for the map, those with a connection first, and the next one when a reply is slow.
    pub(crate) async fn refresh(&self, within: Duration) -> Result<(), Failure> {
        let mut candidates = self.candidates().into_iter();
        let mut asked = JoinSet::new();
        let mut failure: Option<Failure> = None;
        // Ends with the last reply: `within` bounds each of them.
        loop {
            let patience = match candidates.next() {
                Some(server) => {
                    asked.spawn(async move { (slot_ranges::fetch(&server, within).await, server) });
                    REFRESH_PATIENCE
                }
                None if asked.is_empty() => break,
                None => within,
            };
            match timeout(patience, asked.join_next()).await {
                Ok(Some(Ok((Ok(ranges), server)))) => {
                    self.adopt(&ranges, &server);
                    return Ok(());
                }
                // A transient failure takes precedence over a permanent one.
                Ok(Some(Ok((Err(other), _))))
                    if failure.as_ref().is_none_or(|known| !known.is_transient()) =>
                {
                    failure = Some(other);
                }
                Ok(_) | Err(_) => {}
            }
        }
        let none = || Failure::no_reply("no node of the cluster answered");
        Err(failure.unwrap_or_else(none))
    }

    fn candidates(&self) -> Vec<Arc<RedisServer>> {
        let mut map = self.map.lock();
        for seed in &self.seeds.nodes {
            self.server_at(&mut map, seed);
        }
        let mut servers: Vec<_> = map.servers.values().cloned().collect();
        drop(map);
        servers.sort_by_key(|server| !server.connection.is_up());
        servers
    }

    fn adopt(&self, ranges: &[SlotRange], source: &Arc<RedisServer>) {
        let mut map = self.map.lock();
        let template = source.connection.address();
        let mut kept = HashMap::new();
        let mut owners = vec![None; usize::from(SLOTS)];
        for range in ranges {
            let server = self.server_at(&mut map, &template.at(&range.host, range.port));
            kept.insert((range.host.clone(), range.port), server.clone());
            for slot in range.first..=range.last {
                owners[usize::from(slot)] = Some(server.clone());
            }
        }
        // Nodes without slots are dropped, except for the one that sent the map.
        if let Some((host, port)) = source.connection.address().place() {
            kept.entry((host.to_owned(), port))
                .or_insert_with(|| source.clone());
        }
        let before = std::mem::replace(
            &mut *map,
            SlotMap {
                servers: kept,
                owners,
            },
        );
        drop(map);
        // Dropped outside of the mutex, because dropping the last handle of a node closes its connection.
        drop(before);
    }

    fn server_at(&self, map: &mut SlotMap, address: &Address) -> Arc<RedisServer> {
        let place = address.place();
        let (host, port) = place.expect("a url with several hosts has no paths of sockets");
        let make = || {
            let (settings, address) = (&self.server_settings, address.clone());
            let subscription = ShardedSubscription::new(address.clone(), settings);
            let events = settings.events.of_channel("".into());
            let (purpose, timing) = (Purpose::LocksOnly, settings.timing);
            let node = ReconnectingConnection::new(address, None, purpose, timing, events);
            Arc::new(RedisServer::new(
                node,
                Some(subscription),
                settings.replicas,
            ))
        };
        map.servers
            .entry((host.to_owned(), port))
            .or_insert_with(make)
            .clone()
    }
}
