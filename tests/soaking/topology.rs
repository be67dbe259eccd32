//! The lock servers, with the proxies between them and the contenders.

use std::{fs, io, path::Path, str::FromStr, time::Duration};

use lock_tests::{Cluster, Proxy, RedisServer, Sentinels};

use crate::keys::Kept;

/// The password of the servers, which must not appear in any output.
pub(crate) const PASSWORD: &str = "correct-horse-battery";

/// The name of the user without the right to run scripts.
const PLAIN: &str = "plain";

/// The number of independent servers, of which a majority has to agree.
const INDEPENDENT: usize = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Topology {
    One,
    /// One server with RESP2: messages come on a second connection.
    Resp2,
    /// One server with a user without the right to run scripts.
    WithoutScripts,
    Sentinel,
    Cluster,
    Redlock,
}

impl Topology {
    pub(crate) const ALL: [(&str, Self); 6] = [
        ("one", Self::One),
        ("sentinel", Self::Sentinel),
        ("cluster", Self::Cluster),
        ("redlock", Self::Redlock),
        ("resp2", Self::Resp2),
        ("without-scripts", Self::WithoutScripts),
    ];

    pub(crate) fn name(self) -> &'static str {
        let row = Self::ALL.iter().find(|row| row.1 == self);
        row.expect("all are listed").0
    }

    /// Whether it is one server and nothing else.
    pub(crate) fn is_single(self) -> bool {
        matches!(self, Self::One | Self::Resp2 | Self::WithoutScripts)
    }

    /// Whether a fencing token takes rounds of commands, until no other process comes in between.
    pub(crate) fn counts_in_rounds(self) -> bool {
        matches!(self, Self::WithoutScripts | Self::Redlock)
    }

    /// Whether locks can be shared there and can have permits.
    pub(crate) fn has_modes(self) -> bool {
        !matches!(self, Self::WithoutScripts | Self::Redlock)
    }

    /// The number of servers that faults can hit one by one.
    pub(crate) fn nodes(self) -> u64 {
        match self {
            Self::One | Self::Resp2 | Self::WithoutScripts | Self::Sentinel => 1,
            Self::Cluster | Self::Redlock => 3,
        }
    }

    /// The longest ttl of all locks.
    pub(crate) fn longest_ttl(self) -> Duration {
        match self {
            // A short one, so that a server which restarts may vote again soon.
            Self::Redlock => Duration::from_secs(4),
            _ => Kept::LONGEST_TTL,
        }
    }

    /// The time after a restart in which one of several servers has no vote.
    pub(crate) fn quarantine(self) -> Duration {
        match self {
            Self::Redlock => 2 * self.longest_ttl() + Duration::from_secs(5),
            _ => Duration::ZERO,
        }
    }
}

impl FromStr for Topology {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        let row = Self::ALL.iter().find(|row| row.0 == name);
        row.map(|row| row.1).ok_or(())
    }
}

/// The contenders with a broken network, by their places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sides {
    Even,
    Odd,
    Both,
}

/// The running servers of a topology. Methods that wait for them block.
#[derive(Debug)]
pub(crate) struct Servers {
    pub(crate) topology: Topology,
    pub(crate) kind: Kind,
}

#[derive(Debug)]
pub(crate) enum Kind {
    /// Independent servers, as a rule one. Each is behind two proxies: one for every second contender, one for the others.
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

    /// The url for the contender at a place.
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

    /// The server with this number among those that take writes now.
    pub(crate) fn node(&self, number: u64) -> &RedisServer {
        let nodes = self.primaries();
        let number = usize::try_from(number).expect("a few");
        nodes[number % nodes.len()]
    }

    /// The proxies in front of the independent server with this number, for these contenders.
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

    /// The ports of the servers that take writes, if these can change without a planned fault and are known right now.
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

    /// Adds the logs of the servers to files in this folder.
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

/// A server with data that survive its process, unless they are removed.
fn persistent() -> lock_tests::RedisServerBuilder {
    // The server hands its data to the kernel before it answers, and a kill of the process does not remove them from there.
    RedisServer::builder()
        .setting("appendonly", "yes")
        .setting("appendfsync", "no")
}

fn behind_proxies(server: RedisServer) -> (RedisServer, [Proxy; 2]) {
    let proxies = [server.port(); 2].map(Proxy::start);
    (server, proxies)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_topology_has_a_name_that_is_read_back() {
        for (name, topology) in Topology::ALL {
            assert_eq!(name.parse(), Ok(topology));
            assert_eq!(topology.name(), name);
        }
        assert_eq!("other".parse::<Topology>(), Err(()));
    }
}
