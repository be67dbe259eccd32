//! The servers behind one url, of any kind, for tests that run unchanged on all kinds.

use std::{
    collections::BTreeSet,
    pin::pin,
    task::{Context, Poll, Waker},
    time::{Duration, UNIX_EPOCH},
};

use lock_core::{LockManager, inspect::LockInfo};

use crate::{
    certificates::Certificates,
    cluster::Cluster,
    sentinels::Sentinels,
    server::RedisServer,
    slot::{slot_of, tag_of_slot},
    stand_in::{Quirk, StandIn},
};

/// A server, sentinels with the servers that they watch, a cluster, or the table inside this process. All of it is stopped when
/// the value is dropped.
///
/// The methods ask the server that has the key, as a client with all rights. They block.
#[derive(Debug)]
pub struct Deployment {
    servers: Servers,
    // The url for clients, if it differs from that of the servers.
    url: Option<String>,
    // A certificate in PEM.
    authority: Option<String>,
    // The endpoint in front of the server, kept for its tasks.
    _endpoint: Option<StandIn>,
    waiting: Waiting,
    runs_scripts: bool,
}

#[derive(Debug)]
enum Servers {
    Single(RedisServer),
    Sentinels(Sentinels),
    Cluster(Cluster),
    /// One manager for all clients, since each manager has a table of its own.
    Memory(LockManager),
}

/// The way in which a waiting client learns that it has the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waiting {
    /// It has a place in a queue on the server, and the server notifies it.
    InQueue,
    /// It polls, because it may not run scripts.
    Polling,
}

impl From<RedisServer> for Deployment {
    fn from(server: RedisServer) -> Self {
        Self::of(Servers::Single(server))
    }
}

impl From<Sentinels> for Deployment {
    fn from(sentinels: Sentinels) -> Self {
        Self::of(Servers::Sentinels(sentinels))
    }
}

impl From<Cluster> for Deployment {
    fn from(cluster: Cluster) -> Self {
        Self::of(Servers::Cluster(cluster))
    }
}

impl Deployment {
    /// Makes a deployment of a single server with this user for its clients. The user may run scripts.
    pub fn for_user(server: RedisServer, name: &str, password: &str) -> Self {
        let url = server.url_as(name, password);
        Self {
            url: Some(url),
            ..Self::from(server)
        }
    }

    /// Makes a deployment of a single server on which clients may do everything but run scripts.
    pub fn without_scripts(server: RedisServer) -> Self {
        server.add_user_without_scripts();
        Self {
            waiting: Waiting::Polling,
            runs_scripts: false,
            url: Some(server.url_without_scripts()),
            ..Self::from(server)
        }
    }

    /// Starts a single server whose provider removed `EVALSHA`. It could run scripts by their text, but lock-core then uses none.
    pub fn without_evalsha() -> Self {
        let server = RedisServer::builder().without_command("EVALSHA");
        Self {
            waiting: Waiting::Polling,
            runs_scripts: false,
            ..Self::from(server.start())
        }
    }

    /// Makes an in-process deployment, `memory://`. Its manager answers queries about keys.
    pub fn in_memory() -> Self {
        Self::of(Servers::Memory(LockManager::in_memory()))
    }

    /// Returns the manager of the table inside this process, if that is the deployment.
    pub fn memory(&self) -> Option<&LockManager> {
        match &self.servers {
            Servers::Memory(locks) => Some(locks),
            _ => None,
        }
    }

    /// Starts an endpoint that refuses requests with keys of different slots, as one in front of several shards does.
    pub fn sharded() -> Self {
        let server = RedisServer::start();
        let endpoint = StandIn::start(server.port(), Quirk::OtherSlots);
        Self {
            url: Some(format!("{}?sharded=true", endpoint.url())),
            _endpoint: Some(endpoint),
            ..Self::from(server)
        }
    }

    /// Starts a server that refuses keys that a script uses without declaring them.
    pub fn of_declared_keys() -> Self {
        let server = RedisServer::start();
        let endpoint = StandIn::start(server.port(), Quirk::UndeclaredKeys);
        Self {
            url: Some(endpoint.url()),
            _endpoint: Some(endpoint),
            ..Self::from(server)
        }
    }

    /// Makes a deployment of a single server that clients reach through TLS, with the authority of these certificates.
    pub fn over_tls(server: RedisServer, certificates: &Certificates) -> Self {
        let url = server.tls_url();
        Self {
            url: Some(url),
            ..Self::from(server).trusting(certificates)
        }
    }

    /// Tells clients to trust the authority of these certificates.
    #[must_use = "returns the changed deployment"]
    pub fn trusting(self, certificates: &Certificates) -> Self {
        let authority = Some(certificates.authority());
        Self { authority, ..self }
    }

    /// Returns the authority that clients must trust, if the servers use TLS.
    pub fn authority(&self) -> Option<&str> {
        self.authority.as_deref()
    }

    /// Returns the url for clients.
    pub fn url(&self) -> String {
        match (&self.url, &self.servers) {
            (Some(url), _) => url.clone(),
            (None, Servers::Single(server)) => server.url(),
            (None, Servers::Sentinels(sentinels)) => sentinels.url(),
            (None, Servers::Cluster(cluster)) => cluster.url(),
            (None, Servers::Memory(_)) => "memory://".to_owned(),
        }
    }

    /// Returns the value of a string key, or the name of the holder in memory.
    pub fn get(&self, key: &str) -> Option<String> {
        if let Some(locks) = self.memory() {
            return seen(locks, key).map(|info| info.holder.to_string());
        }
        self.server_of(key).get(key)
    }

    /// Returns the remaining time to live of a key that exists and expires.
    pub fn pttl(&self, key: &str) -> Option<Duration> {
        if let Some(locks) = self.memory() {
            return seen(locks, key)?.remaining;
        }
        self.server_of(key).pttl(key)
    }

    /// Returns when a key that exists and expires will do so, by its server's clock; see
    /// [`RedisServer::expires_at`](crate::RedisServer::expires_at).
    pub fn expires_at(&self, key: &str) -> Option<Duration> {
        self.server_of(key).expires_at(key)
    }

    /// Removes a key.
    pub fn delete(&self, key: &str) {
        if let Some(locks) = self.memory() {
            return at_once(locks.force_release(name_of(key)))
                .map(drop)
                .expect("it is there");
        }
        self.server_of(key).cli(&["DEL", key]);
    }

    /// Returns the keys that match a glob pattern, from all servers, in order.
    pub fn keys(&self, pattern: &str) -> Vec<String> {
        let primaries = self.primaries().into_iter();
        let keys: BTreeSet<String> = primaries.flat_map(|server| server.keys(pattern)).collect();
        keys.into_iter().collect()
    }

    /// Returns how many connections managers have to the servers that take writes.
    pub fn connections_of_managers(&self) -> usize {
        let primaries = self.primaries().into_iter();
        primaries.map(RedisServer::connections_of_managers).sum()
    }

    /// Returns the names that managers gave to their connections to the server of a key.
    pub fn names_of_connections(&self, key: &str) -> Vec<String> {
        let clients = self.server_of(key).cli(&["CLIENT", "LIST"]);
        let clients: String = redis::from_redis_value(clients).expect("text");
        let fields = clients.split_whitespace();
        let names = fields.filter_map(|field| field.strip_prefix("name="));
        let ours = names.filter(|name| name.starts_with("lock-core:"));
        ours.map(str::to_owned).collect()
    }

    /// Removes all keys.
    pub fn flush_all(&self) {
        for server in self.primaries() {
            server.cli(&["FLUSHALL"]);
        }
    }

    /// Returns the time by the clock of the server that has a key.
    pub fn time(&self, key: &str) -> Duration {
        if self.memory().is_some() {
            return UNIX_EPOCH.elapsed().expect("a clock after 1970");
        }
        self.server_of(key).time()
    }

    /// Returns how often a command was called on the servers that take writes, since each of them started.
    pub fn calls(&self, command: &str) -> u64 {
        let primaries = self.primaries().into_iter();
        primaries.map(|server| server.calls(command)).sum()
    }

    /// Marks the deployment as one that notifies no waiter, like a cluster of servers without sharded pub/sub.
    #[must_use = "returns the changed deployment"]
    pub fn without_messages(self) -> Self {
        let waiting = Waiting::Polling;
        Self { waiting, ..self }
    }

    /// Returns whether lock-core runs scripts here.
    pub fn runs_scripts(&self) -> bool {
        self.runs_scripts
    }

    /// Returns the command that notifies a waiter of its grant; `None` if waiters poll.
    pub fn grants_by(&self) -> Option<&'static str> {
        match (self.waiting, &self.servers) {
            (Waiting::Polling, _) | (_, Servers::Memory(_)) => None,
            (Waiting::InQueue, Servers::Cluster(_)) => Some("spublish"),
            (Waiting::InQueue, _) => Some("publish"),
        }
    }

    /// Returns whether waiting clients have places in a queue. If not, they poll.
    pub fn queues_waiters(&self) -> bool {
        self.waiting == Waiting::InQueue
    }

    /// Returns whether a client waits in the queue of a key on its server.
    pub fn has_queue(&self, key: &str) -> bool {
        if let Some(locks) = self.memory() {
            return seen(locks, key).is_some_and(|info| info.waiters > 0);
        }
        self.has_companion(key, "waiters")
    }

    /// Returns whether a client has recently checked its place in the queue of a key.
    pub fn has_beats(&self, key: &str) -> bool {
        self.has_companion(key, "beats")
    }

    fn has_companion(&self, key: &str, what: &str) -> bool {
        let is_sharded = self.url().contains("sharded=true");
        let name = if matches!(self.servers, Servers::Cluster(_)) || is_sharded {
            let tag = tag_of_slot(slot_of(key));
            format!("__lock_core__:{{{tag}}}:{what}:{key}")
        } else {
            format!("__lock_core__:{what}:{key}")
        };
        let found = self.server_of(key).cli(&["EXISTS", &name]);
        redis::from_redis_value::<u64>(found).expect("an integer") > 0
    }

    /// Kills the server that has a key, and returns it. Call [`failed_over`](Self::failed_over) next.
    pub fn kill_server_of(&self, key: &str) -> &RedisServer {
        match &self.servers {
            Servers::Single(server) => {
                server.kill9();
                server
            }
            Servers::Sentinels(sentinels) => sentinels.kill_primary(),
            Servers::Cluster(cluster) => cluster.kill_master_of(key),
            Servers::Memory(_) => no_server(),
        }
    }

    /// Waits until another server has taken over from the killed one; a single server is restarted, empty.
    pub fn failed_over(&self, killed: &RedisServer) {
        match &self.servers {
            Servers::Single(server) => server.restart(),
            Servers::Memory(_) => no_server(),
            Servers::Sentinels(sentinels) => sentinels.failed_over(killed),
            Servers::Cluster(cluster) => cluster.failed_over(killed),
        }
    }

    /// Restarts a killed server as a replica of the one that took over, and waits until nothing is missing.
    pub fn rejoin(&self, killed: &RedisServer) {
        match &self.servers {
            Servers::Single(_) | Servers::Memory(_) => {}
            Servers::Sentinels(sentinels) => sentinels.rejoin(killed),
            Servers::Cluster(cluster) => cluster.rejoin(killed),
        }
    }

    /// Returns whether each server that may take over from the server of a key has the key.
    pub fn is_replicated(&self, key: &str) -> bool {
        let replicas = match &self.servers {
            Servers::Single(_) | Servers::Memory(_) => Vec::new(),
            Servers::Sentinels(sentinels) => sentinels.replicas(),
            Servers::Cluster(cluster) => vec![cluster.replica_of(key)],
        };
        // A replica in a cluster serves no key to a plain client, but it lists the names of its keys.
        let mut replicas = replicas.into_iter();
        replicas.all(|replica| !replica.keys(key).is_empty())
    }

    /// Withholds further writes from each server that may take over from the server of a key.
    pub fn cut_replicas_of(&self, key: &str) {
        match &self.servers {
            Servers::Single(_) | Servers::Memory(_) => {}
            Servers::Sentinels(sentinels) => sentinels.cut_replicas(),
            Servers::Cluster(cluster) => cluster.cut_replica_of(key),
        }
    }

    /// Resumes the replicas, which cannot take over before this call.
    pub fn cont_replicas(&self) {
        match &self.servers {
            Servers::Single(_) | Servers::Memory(_) => {}
            Servers::Sentinels(sentinels) => sentinels.cont(),
            Servers::Cluster(cluster) => cluster.cont(),
        }
    }

    /// Returns the server that has a key, for raw commands.
    pub fn server_of(&self, key: &str) -> &RedisServer {
        match &self.servers {
            Servers::Single(server) => server,
            Servers::Sentinels(sentinels) => sentinels.primary(),
            Servers::Cluster(cluster) => cluster.master_of(key),
            Servers::Memory(_) => no_server(),
        }
    }

    fn of(servers: Servers) -> Self {
        Self {
            servers,
            url: None,
            authority: None,
            _endpoint: None,
            waiting: Waiting::InQueue,
            runs_scripts: true,
        }
    }

    fn primaries(&self) -> Vec<&RedisServer> {
        match &self.servers {
            Servers::Single(server) => vec![server],
            Servers::Sentinels(sentinels) => vec![sentinels.primary()],
            Servers::Cluster(cluster) => cluster.masters(),
            Servers::Memory(_) => no_server(),
        }
    }
}

fn no_server() -> ! {
    panic!("a table in memory has no server")
}

/// Returns the name of the lock that has a key.
fn name_of(key: &str) -> &str {
    key.strip_prefix("lock:").expect("the key of a lock")
}

/// Returns the state of a key, according to the manager in memory.
fn seen(locks: &LockManager, key: &str) -> Option<LockInfo> {
    at_once(locks.inspect(name_of(key))).expect("it is there")
}

/// Returns the result of a future that is ready at its first poll.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("it waits"),
    }
}
