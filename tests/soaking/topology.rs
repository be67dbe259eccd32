//! The lock servers, and the proxies between them and the contenders.

use std::{fs, io, path::Path, time::Duration};

use clap::ValueEnum;
use lock_tests::{Cluster, Proxy, RedisServer, Sentinels};

use crate::keys::Kept;

/// The password of the servers, which must not appear in any output.
pub(crate) const PASSWORD: &str = "correct-horse-battery";

/// The name of the user without the right to run scripts.
const PLAIN: &str = "plain";

/// The number of independent servers, a majority of which has to agree.
const INDEPENDENT: usize = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Topology {
    One,
    /// One server with RESP2, so that messages arrive on a second connection.
    Resp2,
    /// One server with a user without the right to run scripts.
    WithoutScripts,
    Sentinel,
    Cluster,
    Redlock,
}

impl Topology {
    /// Returns whether it is a single server.
    pub(crate) fn is_single(self) -> bool {
        matches!(self, Self::One | Self::Resp2 | Self::WithoutScripts)
    }

    /// Returns whether a fencing token takes rounds of commands, until no other process interferes.
    pub(crate) fn counts_in_rounds(self) -> bool {
        matches!(self, Self::WithoutScripts | Self::Redlock)
    }

    /// Returns whether locks can be shared and can have permits.
    pub(crate) fn has_modes(self) -> bool {
        !matches!(self, Self::WithoutScripts | Self::Redlock)
    }

    /// Returns the number of servers that a fault can hit individually.
    pub(crate) fn nodes(self) -> u64 {
        match self {
            Self::One | Self::Resp2 | Self::WithoutScripts | Self::Sentinel => 1,
            Self::Cluster | Self::Redlock => 3,
        }
    }

    /// Returns the longest ttl of all locks.
    pub(crate) fn longest_ttl(self) -> Duration {
        match self {
            // Short, so that a restarted server soon votes again.
            Self::Redlock => Duration::from_secs(4),
            _ => Kept::LONGEST_TTL,
        }
    }

    /// Returns the time after a restart for which one of several servers has no vote.
    pub(crate) fn quarantine(self) -> Duration {
        match self {
            Self::Redlock => 2 * self.longest_ttl() + Duration::from_secs(5),
            _ => Duration::ZERO,
        }
    }
}

/// The contenders that a fault of the network hits, by their places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sides {
    Even,
    Odd,
    Both,
}

/// The running servers of a topology. Its methods block.
#[derive(Debug)]
pub(crate) struct Servers {
    pub(crate) topology: Topology,
    pub(crate) kind: Kind,
}

#[derive(Debug)]
pub(crate) enum Kind {
    /// Independent servers, usually one, each behind two proxies: one for every second contender, and one for the others.
    Independent(Vec<(RedisServer, [Proxy; 2])>),
    Sentinels(Sentinels),
    Cluster(Cluster),
}

impl Servers {
    pub(crate) fn start(topology: Topology) -> Self {
        let kind = match topology {
            Topology::Sentinel => Kind::Sentinels(Sentinels::builder().password(PASSWORD).start()),
            Topology::Cluster => Kind::Cluster(Cluster::start()),
            Topology::Redlock => {
                let servers = (0..INDEPENDENT).map(|_| RedisServer::builder().password(PASSWORD));
                Kind::Independent(
                    servers
                        .map(|server| behind_proxies(server.start()))
                        .collect(),
                )
            }
            Topology::One | Topology::Resp2 => Kind::Independent(vec![behind_proxies(
                persistent().password(PASSWORD).start(),
            )]),
            Topology::WithoutScripts => {
                let user = format!("user {PLAIN} on >{PASSWORD} ~* &* +@all -@scripting");
                Kind::Independent(vec![behind_proxies(persistent().acl(&user).start())])
            }
        };
        Self { topology, kind }
    }

    /// Returns the url for the contender at a place.
    pub(crate) fn url(&self, place: u64) -> String {
        match &self.kind {
            Kind::Sentinels(sentinels) => sentinels.url(),
            Kind::Cluster(cluster) => cluster.url(),
            Kind::Independent(servers) => {
                let user = if self.topology == Topology::WithoutScripts {
                    PLAIN
                } else {
                    ""
                };
                let side = usize::from(place % 2 == 1);
                let proxies = servers.iter().map(|(_, proxies)| &proxies[side]);
                let urls = proxies.map(|proxy| proxy.url_as(user, PASSWORD));
                let urls: Vec<String> = urls.collect();
                let query = if self.topology == Topology::Resp2 {
                    "/?protocol=2"
                } else {
                    ""
                };
                urls.join(",") + query
            }
        }
    }

    /// Returns the server with this number among those that accept writes now.
    pub(crate) fn node(&self, number: u64) -> &RedisServer {
        let nodes = self.primaries();
        let number = usize::try_from(number).expect("a few");
        nodes[number % nodes.len()]
    }

    /// Returns the proxies in front of the independent server with this number, for these contenders.
    pub(crate) fn proxies(&self, number: u64, sides: Sides) -> &[Proxy] {
        let Kind::Independent(servers) = &self.kind else {
            unreachable!("no fault of the network is planned here");
        };
        let (_, proxies) = &servers[usize::try_from(number).expect("a few")];
        match sides {
            Sides::Even => &proxies[..1],
            Sides::Odd => &proxies[1..],
            Sides::Both => proxies,
        }
    }

    pub(crate) fn primaries(&self) -> Vec<&RedisServer> {
        match &self.kind {
            Kind::Sentinels(sentinels) => vec![sentinels.primary()],
            Kind::Cluster(cluster) => cluster.masters(),
            Kind::Independent(servers) => servers.iter().map(|(server, _)| server).collect(),
        }
    }

    /// Returns the ports of the servers that accept writes, if they are known now. Those of independent servers never change.
    pub(crate) fn roles(&self) -> Option<Vec<u16>> {
        match &self.kind {
            Kind::Sentinels(sentinels) => Some(vec![sentinels.named()?]),
            Kind::Cluster(cluster) => {
                let masters = cluster.masters().into_iter();
                let mut ports: Vec<u16> = masters.map(RedisServer::port).collect();
                ports.sort_unstable();
                Some(ports)
            }
            Kind::Independent(_) => Some(Vec::new()),
        }
    }

    /// Clears the requests that the proxies record, which the soak does not read.
    pub(crate) fn clear_logs_of_proxies(&self) {
        if let Kind::Independent(servers) = &self.kind {
            for proxy in servers.iter().flat_map(|(_, proxies)| proxies) {
                proxy.clear_log();
            }
        }
    }

    /// Writes the logs of the servers to files in this folder.
    pub(crate) fn save_logs(&self, folder: &Path) -> io::Result<()> {
        let servers: Vec<&RedisServer> = match &self.kind {
            Kind::Sentinels(sentinels) => sentinels
                .servers()
                .iter()
                .chain(sentinels.sentinels())
                .collect(),
            Kind::Cluster(cluster) => cluster.nodes().iter().collect(),
            Kind::Independent(servers) => servers.iter().map(|(server, _)| server).collect(),
        };
        for server in servers {
            fs::write(
                folder.join(format!("server-{}", server.port())),
                server.log(),
            )?;
        }
        Ok(())
    }
}

/// Builds a server whose data survive its process.
fn persistent() -> lock_tests::RedisServerBuilder {
    // The server hands its data to the kernel before it replies, so that killing the process does not lose them.
    RedisServer::builder()
        .setting("appendonly", "yes")
        .setting("appendfsync", "no")
}

fn behind_proxies(server: RedisServer) -> (RedisServer, [Proxy; 2]) {
    let proxies = [server.port(); 2].map(Proxy::start);
    (server, proxies)
}
