//! A cluster of three masters with a replica each, that survives the death of a master and moves slots.

use std::{
    fmt::Write,
    ops::RangeInclusive,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    certificates::Certificates,
    server::{AskClients, Kind, RedisServer},
    slot::{SLOTS, slot_of},
    wait::{HANG, eventually_blocking},
};

mod migration;
mod view;

pub use self::migration::Migration;
use self::view::View;

const MASTERS: usize = 3;

/// The time after which nodes that do not know each other are introduced again. Their own time-out is a second.
const INTRODUCED_AFTER: Duration = Duration::from_secs(5);

/// Three masters with a third of the slots each, and a replica for each of them; all are stopped when the value is dropped.
///
/// A node that does not answer for a second is considered dead, and its replica takes over. The methods block, some of them for
/// seconds.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<RedisServer>,
    options: ClusterBuilder,
}

/// The settings of a [`Cluster`] that is to be started.
#[derive(Debug, Clone)]
#[must_use = "a builder starts nothing by itself"]
pub struct ClusterBuilder {
    kind: Kind,
    masters: usize,
    replicas: usize,
    spares: usize,
    password: Option<String>,
    acl: Vec<String>,
    tls: Option<Arc<Certificates>>,
}

impl Default for ClusterBuilder {
    fn default() -> Self {
        Self {
            kind: Kind::default(),
            masters: MASTERS,
            replicas: 1,
            spares: 0,
            password: None,
            acl: Vec::new(),
            tls: None,
        }
    }
}

impl ClusterBuilder {
    /// Starts servers of another kind than the distribution's.
    pub fn kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    /// Starts this many masters and no replica: the cluster is ready much sooner, and no node takes over.
    pub fn masters_alone(mut self, masters: usize) -> Self {
        self.masters = masters;
        self.replicas = 0;
        self
    }

    /// Adds a node without slots, as the last one.
    pub fn with_a_spare(mut self) -> Self {
        self.spares = 1;
        self
    }

    /// Makes all nodes ask clients for a password.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Adds a line of the access control list of all nodes, as in `acl("user alice on >pw ~* &* +@all")`.
    pub fn acl(mut self, line: &str) -> Self {
        self.acl.push(line.to_owned());
        self
    }

    /// Makes the nodes use TLS among themselves and with clients. The harness itself still connects without TLS.
    pub fn tls(mut self, certificates: &Arc<Certificates>) -> Self {
        self.tls = Some(Arc::clone(certificates));
        self
    }

    /// Starts them and waits until they serve all slots and the replicas have all data.
    pub fn start(self) -> Cluster {
        let nodes = self.masters * (1 + self.replicas) + self.spares;
        let cluster = Cluster {
            nodes: (0..nodes).map(|_| self.node()).collect(),
            options: self,
        };
        cluster.introduce();
        cluster.share_out();
        cluster.whole();
        cluster
    }

    fn node(&self) -> RedisServer {
        let mut node = RedisServer::builder()
            .kind(self.kind)
            .cluster_node()
            .setting("cluster-node-timeout", "1000")
            // A replica that was stopped for a while may still take over, with the data that it has.
            .setting("cluster-replica-validity-factor", "0")
            // No replica changes its master by itself.
            .setting("cluster-migration-barrier", "99")
            .setting("repl-diskless-sync", "yes")
            .setting("repl-diskless-sync-delay", "0");
        if let Some(password) = &self.password {
            node = node.password(password).setting("masterauth", password);
        }
        if !self.acl.is_empty() {
            let (user, password) = RedisServer::HARNESS;
            node = node
                .setting("masteruser", user)
                .setting("masterauth", password);
        }
        if let Some(certificates) = &self.tls {
            node = node
                .tls(certificates, AskClients::Never)
                .setting("tls-cluster", "yes")
                .setting("tls-replication", "yes");
        }
        let lines = self.acl.iter();
        lines.fold(node, |node, line| node.acl(line)).start()
    }
}

impl Cluster {
    /// Starts a cluster with the defaults: the distribution's servers, three masters and three replicas, no password.
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// Starts a cluster with the defaults, of servers of another kind.
    pub fn of(kind: Kind) -> Self {
        Self::builder().kind(kind).start()
    }

    /// Returns the defaults, to be changed.
    pub fn builder() -> ClusterBuilder {
        ClusterBuilder::default()
    }

    /// Kills the master that has a key, and returns it.
    pub fn kill_master_of(&self, key: &str) -> &RedisServer {
        let master = self.master_of(key);
        master.kill9();
        master
    }

    /// Waits until another node than `killed` serves each of the slots that `killed` had.
    pub fn failed_over(&self, killed: &RedisServer) {
        eventually_blocking(HANG, "another node has the slots", || {
            let mut running = self.running();
            running.all(|node| {
                let view = View::of(node);
                view.is_some_and(|view| view.serves_all_without(killed.port())) && serves(node)
            })
        });
    }

    /// Starts a killed node again, empty, and waits until it has all data as a replica.
    ///
    /// Another node must have its slots already: if the node came back as their master, it would serve them without data.
    pub fn rejoin(&self, killed: &RedisServer) {
        killed.restart();
        self.whole();
    }

    /// Waits until nothing is missing: all nodes serve all slots and know the same masters, and each master has a replica with all
    /// its data.
    pub fn whole(&self) {
        eventually_blocking(HANG, "a cluster with all its replicas", || {
            let mut views = self.nodes.iter().map(View::of);
            let Some(Some(first)) = views.next() else {
                return false;
            };
            let ClusterBuilder {
                masters,
                replicas,
                spares,
                ..
            } = self.options;
            first.is_whole(masters, replicas, spares)
                && views.all(|view| view.is_some_and(|view| view.agrees_with(&first)))
                && self.nodes.iter().all(serves)
                && (replicas == 0 || self.nodes.iter().all(is_up_to_date))
        });
    }

    /// Makes the replica of a key's master take the master's place, and waits until nothing is missing.
    pub fn switch(&self, key: &str) {
        let master = self.master_of(key);
        self.replica_of(key).cli(&["CLUSTER", "FAILOVER"]);
        self.failed_over(master);
        self.whole();
    }

    /// Keeps writes to the master of a key from its replica from now on.
    ///
    /// The replica is stopped and its connection closed: otherwise it would read the writes from the connection after the stop.
    pub(crate) fn cut_replica_of(&self, key: &str) {
        self.replica_of(key).stop();
        self.master_of(key)
            .cli(&["CLIENT", "KILL", "TYPE", "replica"]);
    }

    /// Resumes all running nodes, after a replica was cut off.
    pub fn cont(&self) {
        for node in self.running() {
            node.cont();
        }
    }

    /// Prepares the migration of a slot to another master, which goes step by step.
    pub fn migration<'a>(&'a self, slot: u16, target: &'a RedisServer) -> Migration<'a> {
        Migration::new(self, slot, target)
    }

    /// Returns the master that has a key.
    pub fn master_of(&self, key: &str) -> &RedisServer {
        self.master_of_slot(slot_of(key))
    }

    /// Returns the master that has a slot, according to the nodes that answer.
    pub fn master_of_slot(&self, slot: u16) -> &RedisServer {
        let mut master = None;
        eventually_blocking(HANG, "the slot has a master", || {
            master = self.masters_by(|view| view.master_of(slot)).pop();
            master.is_some()
        });
        master.expect("the wait is over")
    }

    /// Returns the replica of the master that has a key.
    pub fn replica_of(&self, key: &str) -> &RedisServer {
        let master = self.master_of(key).port();
        let mut replica = None;
        eventually_blocking(HANG, "the master has a replica", || {
            replica = self.masters_by(|view| view.replica_of(master)).pop();
            replica.is_some()
        });
        replica.expect("the wait is over")
    }

    /// Returns the masters that have slots.
    pub fn masters(&self) -> Vec<&RedisServer> {
        let mut masters = Vec::new();
        eventually_blocking(HANG, "there are masters", || {
            masters = self.masters_by(View::masters_with_slots);
            !masters.is_empty()
        });
        masters
    }

    /// Returns all nodes, whatever their roles are now. The first ones were the masters at the start.
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// Returns the url for clients: `redis+cluster://host:port,…`, with the password if there is one.
    pub fn url(&self) -> String {
        match &self.options.password {
            Some(password) => self.url_as("", password),
            None => self.url_with(""),
        }
    }

    /// Returns the url for a client with this name (empty for the default one) and password.
    pub fn url_as(&self, user: &str, password: &str) -> String {
        self.url_with(&format!("{user}:{password}@"))
    }

    fn url_with(&self, credentials: &str) -> String {
        let scheme = if self.options.tls.is_some() {
            "rediss"
        } else {
            "redis"
        };
        let mut url = format!("{scheme}+cluster://{credentials}");
        for (number, node) in self.nodes.iter().enumerate() {
            let (comma, port) = (if number == 0 { "" } else { "," }, node.announced_port());
            write!(url, "{comma}127.0.0.1:{port}").expect("a string takes everything");
        }
        url
    }

    /// Introduces each node to each other node: by gossip alone it takes seconds until all nodes know each other.
    fn introduce(&self) {
        for (number, node) in self.nodes.iter().enumerate() {
            // Each node gets another epoch now: otherwise the nodes would first have to settle equal epochs among themselves.
            // A node accepts no epoch once it knows other nodes.
            node.cli(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]);
        }
        // Nodes give up a handshake that takes longer than their time-out, as it may on a busy machine. Then they are introduced again.
        let mut introduced = None::<Instant>;
        eventually_blocking(HANG, "all nodes know each other", || {
            if introduced.is_none_or(|at| at.elapsed() > INTRODUCED_AFTER) {
                introduced = Some(Instant::now());
                for (number, node) in self.nodes.iter().enumerate() {
                    for other in &self.nodes[number + 1..] {
                        let port = other.announced_port().to_string();
                        node.cli(&["CLUSTER", "MEET", "127.0.0.1", &port]);
                    }
                }
            }
            let mut nodes = self.nodes.iter();
            nodes.all(|node| View::of(node).is_some_and(|view| view.knows(self.nodes.len())))
        });
    }

    fn share_out(&self) {
        let (masters, replicas) = self.nodes.split_at(self.options.masters);
        for (number, master) in masters.iter().enumerate() {
            let mut command = vec!["CLUSTER".to_owned(), "ADDSLOTS".to_owned()];
            command.extend(share(number, masters.len()).map(|slot| slot.to_string()));
            let words: Vec<&str> = command.iter().map(String::as_str).collect();
            master.cli(&words);
        }
        // A spare node stays without a master.
        let replicas = replicas.iter().take(self.options.replicas * masters.len());
        for (master, replica) in masters.iter().zip(replicas) {
            replica.cli(&["CLUSTER", "REPLICATE", &id(master)]);
        }
    }

    /// Returns the servers on the ports in the first view that names any.
    fn masters_by<P: IntoIterator<Item = u16>>(
        &self,
        ports: impl Fn(&View) -> P,
    ) -> Vec<&RedisServer> {
        let views = self.running().filter_map(View::of);
        let servers = views.map(|view| {
            let ports = ports(&view).into_iter();
            ports
                .filter_map(|port| self.nodes.iter().find(|node| node.port() == port))
                .collect::<Vec<_>>()
        });
        let mut some = servers.skip_while(Vec::is_empty);
        some.next().unwrap_or_default()
    }

    fn running(&self) -> impl Iterator<Item = &RedisServer> {
        self.nodes.iter().filter(|node| node.is_running())
    }
}

/// Returns the slots that master `number` of `masters` has at the start.
fn share(number: usize, masters: usize) -> RangeInclusive<u16> {
    let edge = |number: usize| {
        let slots = usize::from(*SLOTS.end()) + 1;
        u16::try_from(slots * number / masters).expect("a slot, or the end")
    };
    edge(number)..=edge(number + 1) - 1
}

fn id(node: &RedisServer) -> String {
    redis::from_redis_value(node.cli(&["CLUSTER", "MYID"])).expect("text")
}

/// Returns whether the node itself reports that it serves. It may know the masters before it does.
fn serves(node: &RedisServer) -> bool {
    let state = text(node, &["CLUSTER", "INFO"]);
    state.is_some_and(|state| state.contains("cluster_state:ok\r\n"))
}

/// Returns whether the node is connected to its master, or to its replica.
fn is_up_to_date(node: &RedisServer) -> bool {
    let Some(state) = text(node, &["INFO", "replication"]) else {
        return false;
    };
    if state.contains("role:slave\r\n") {
        state.contains("master_link_status:up\r\n")
    } else {
        state.contains("connected_slaves:1\r\n")
    }
}

fn text(node: &RedisServer, command: &[&str]) -> Option<String> {
    let reply = node.probe(command).ok()?;
    redis::from_redis_value(reply).ok()
}
