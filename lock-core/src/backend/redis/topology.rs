//! From a url to the servers that are meant: one, the primary that sentinels know, or those of a cluster.

use percent_encoding::percent_decode_str;
use url::Url;

use crate::{
    backend::redis::{
        address::{Address, Credentials, Place, refused},
        security::Security,
    },
    error::LockError,
};

/// Which servers keep the locks.
#[derive(Clone, Debug)]
pub(super) enum Topology {
    Single(Address),
    Sentinel(Service),
    Cluster(Seeds),
}

/// A primary that is known to sentinels under a name.
#[derive(Clone, Debug)]
pub(super) struct Service {
    pub(super) name: String,
    pub(super) sentinels: Vec<Address>,
    /// How to talk to it, wherever it is.
    pub(super) primary: Address,
}

/// The nodes of a cluster that are asked for the others.
#[derive(Clone, Debug)]
pub(super) struct Seeds {
    pub(super) nodes: Vec<Address>,
    /// What is shown of the url.
    pub(super) shown: Address,
}

/// Names and passwords that do not come from the url.
#[derive(Clone, Debug, Default)]
pub(crate) struct Access {
    pub(crate) server: Option<Credentials>,
    pub(crate) sentinel: Option<Credentials>,
}

/// The most hosts in one url.
const MOST_HOSTS: usize = 64;

const SENTINEL_PORT: u16 = 26_379;

impl Topology {
    pub(super) fn parse(
        url: &str,
        access: &Access,
        security: &Security,
    ) -> Result<Self, LockError> {
        let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
        let topology = match scheme.split_once('+') {
            Some((base, "sentinel")) => Self::Sentinel(service(base, url, security)?),
            Some((base, "cluster")) => Self::Cluster(seeds(base, url, security)?),
            _ => Self::Single(Address::parse(url, security)?),
        };
        Ok(topology.with(access))
    }

    fn with(mut self, access: &Access) -> Self {
        let server = |address: &mut Address| {
            if let Some(credentials) = &access.server {
                address.set_credentials(Some(credentials.clone()));
            }
        };
        match &mut self {
            Self::Single(address) => server(address),
            Self::Sentinel(service) => {
                server(&mut service.primary);
                if let Some(credentials) = &access.sentinel {
                    for sentinel in &mut service.sentinels {
                        sentinel.set_credentials(Some(credentials.clone()));
                    }
                }
            }
            Self::Cluster(seeds) => seeds.nodes.iter_mut().for_each(server),
        }
        self
    }
}

/// The parts of a url with several hosts.
struct Several<'a> {
    hosts: Vec<&'a str>,
    /// The same url with the first host alone, and with the scheme of a single server.
    first: String,
}

/// `None` if it cannot be taken apart.
fn take_apart<'a>(base: &str, url: &'a str) -> Option<Several<'a>> {
    let (_, rest) = url.split_once("://")?;
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let (user, hosts) = match authority.rsplit_once('@') {
        Some((user, hosts)) => (format!("{user}@"), hosts),
        None => (String::new(), authority),
    };
    let hosts: Vec<_> = hosts.split(',').map(str::trim).collect();
    let several = Several {
        first: format!("{base}://{user}{}{path}", hosts[0]),
        hosts,
    };
    (several.hosts.len() <= MOST_HOSTS).then_some(several)
}

fn service(base: &str, url: &str, security: &Security) -> Result<Service, LockError> {
    let wrong = |reason: &str| {
        let example =
            "write it as in `redis+sentinel://user:password@host:26379,host2:26379/service/0`";
        LockError::invalid(format!(
            "the url `{base}+sentinel://…` cannot be used: {reason}; {example}"
        ))
    };
    let several = take_apart(base, url).ok_or_else(|| wrong("it is malformed"))?;
    let kind = url.split("://").next().unwrap_or(base);
    security.transport(base, &format!("{kind}://{}", several.hosts.join(",")))?;
    let (address, parsed) = Address::parse_with_path(&several.first, security, |path| {
        // Behind the name of the service stands the number of the database.
        path.split_once('/').map_or("", |(_, database)| database)
    })
    .map_err(|_| wrong("it is malformed"))?;
    let path = parsed.path().trim_matches('/');
    let name = path.split('/').next().unwrap_or_default();
    if name.is_empty() {
        return Err(wrong(
            "it does not say under which name the sentinels know the primary",
        ));
    }
    let name = percent_decode_str(name).decode_utf8_lossy().into_owned();
    let shown = format!("{base}+sentinel://{}/{path}", several.hosts.join(","));
    let sentinels = hosts(&several, SENTINEL_PORT)
        .ok_or_else(|| wrong("a host in it is malformed"))?
        .into_iter()
        .map(|(host, port)| {
            let mut sentinel = address.at(&host, port);
            sentinel.set_database(0);
            sentinel.set_credentials(sentinel_credentials(&parsed));
            sentinel
        })
        .collect();
    Ok(Service {
        name,
        sentinels,
        primary: address.shown_as(shown),
    })
}

/// Sentinels have users of their own.
fn sentinel_credentials(url: &Url) -> Option<Credentials> {
    let query = |wanted: &str| {
        url.query_pairs()
            .find_map(|(name, value)| (name == wanted).then(|| value.into_owned()))
    };
    let user = query("sentinel_user").filter(|user| !user.is_empty());
    let user = user.unwrap_or_default();
    query("sentinel_password").map(|password| Credentials::new(user, password))
}

fn seeds(base: &str, url: &str, security: &Security) -> Result<Seeds, LockError> {
    let wrong = |reason: &str| {
        let example = "write it as in `redis+cluster://user:password@host:6379,host2:6379`";
        LockError::invalid(format!(
            "the url `{base}+cluster://…` cannot be used: {reason}; {example}"
        ))
    };
    let several = take_apart(base, url).ok_or_else(|| wrong("it is malformed"))?;
    let kind = url.split("://").next().unwrap_or(base);
    security.transport(base, &format!("{kind}://{}", several.hosts.join(",")))?;
    let (address, parsed) = Address::parse_with_path(&several.first, security, |path| path)
        .map_err(|_| wrong("it is malformed"))?;
    if address.database() != 0 {
        return Err(refused(&parsed, "a cluster has the database 0 only"));
    }
    let hosts =
        hosts(&several, Address::DEFAULT_PORT).ok_or_else(|| wrong("a host in it is malformed"))?;
    let shown = format!("{base}+cluster://{}", several.hosts.join(","));
    Ok(Seeds {
        nodes: hosts
            .into_iter()
            .map(|(host, port)| address.at(&host, port))
            .collect(),
        shown: address.shown_as(shown),
    })
}

fn hosts(several: &Several<'_>, default_port: u16) -> Option<Vec<(String, u16)>> {
    several
        .hosts
        .iter()
        .map(|host| {
            let url = format!("redis://{host}");
            let has_port = Url::parse(&url).ok()?.port().is_some();
            match Address::parse(&url, &Security::default()).ok()?.place() {
                Place::Tcp { host, port } => {
                    Some((host.clone(), if has_port { *port } else { default_port }))
                }
                Place::Unix(_) => None,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(url: &str) -> Result<Topology, LockError> {
        Topology::parse(url, &Access::default(), &Security::default())
    }

    fn places(addresses: &[Address]) -> Vec<(String, u16)> {
        let place = |address: &Address| match address.place() {
            Place::Tcp { host, port } => (host.clone(), *port),
            Place::Unix(path) => panic!("{path:?}"),
        };
        addresses.iter().map(place).collect()
    }

    fn password(address: &Address) -> Option<&str> {
        address
            .credentials()
            .map(|credentials| credentials.password.as_str())
    }

    #[test]
    fn sentinels_and_the_name_of_their_service() {
        let url = "redis+sentinel://app:pa%2Css@a,b:1,[::1]:2/my%20master/3?sentinel_password=x";
        let Ok(Topology::Sentinel(service)) = parse(url) else {
            panic!("refused");
        };
        assert_eq!(service.name, "my master");
        let hosts = [("a", 26_379), ("b", 1), ("::1", 2)];
        let hosts = hosts.map(|(host, port)| (host.to_owned(), port));
        assert_eq!(places(&service.sentinels), hosts);
        for sentinel in &service.sentinels {
            assert_eq!(password(sentinel), Some("x"));
            assert_eq!(sentinel.database(), 0);
        }
        assert_eq!(password(&service.primary), Some("pa,ss"));
        assert_eq!(service.primary.database(), 3);
        assert_eq!(
            service.primary.shown(),
            "redis+sentinel://a,b:1,[::1]:2/my%20master/3"
        );
    }

    #[test]
    fn nodes_of_a_cluster() {
        let Ok(Topology::Cluster(seeds)) = parse("valkey+cluster://:pw@a:1,b") else {
            panic!("refused");
        };
        let hosts = [("a".to_owned(), 1), ("b".to_owned(), 6_379)];
        assert_eq!(places(&seeds.nodes), hosts);
        assert!(seeds.nodes.iter().all(|node| password(node) == Some("pw")));
        assert_eq!(seeds.shown.shown(), "valkey+cluster://a:1,b");
    }

    #[test]
    fn what_the_builder_says_of_users_counts_more_than_the_url() {
        let credentials = |password: &str| {
            Some(Credentials {
                user: None,
                password: password.to_owned(),
            })
        };
        let access = Access {
            server: credentials("one"),
            sentinel: credentials("two"),
        };
        let Ok(Topology::Sentinel(service)) =
            Topology::parse("redis+sentinel://:old@a/m", &access, &Security::default())
        else {
            panic!("refused");
        };
        assert_eq!(password(&service.primary), Some("one"));
        assert_eq!(password(&service.sentinels[0]), Some("two"));
    }

    proptest! {
        #[test]
        fn no_url_panics_or_has_its_password_told(
            scheme in "(redis|rediss|valkey|http|redis[+](sentinel|cluster|unix)|)",
            user in "[a-z]{0,4}",
            odd in r"[:@/?#,%\[\] a-z]{0,6}",
            rest in r"[a-z0-9.:,/\[\]?=&%@ ]{0,24}",
        ) {
            for url in [
                format!("{scheme}://{user}:s3cr3t{odd}@{rest}"),
                format!("{scheme}://{user}:{odd}s3cr3t@{rest}"),
                format!("{scheme}://{rest}?sentinel_password=s3cr3t"),
            ] {
                let told = match parse(&url) {
                    Ok(Topology::Single(address)) => address.shown().to_owned(),
                    Ok(Topology::Sentinel(service)) => format!("{service:?}"),
                    Ok(Topology::Cluster(seeds)) => format!("{seeds:?}"),
                    Err(error) => format!("{error} {error:?}"),
                };
                prop_assert!(!told.contains("s3cr3t"), "{}: {}", url, told);
            }
        }
    }

    #[test]
    fn a_refused_url_says_why_without_its_secret() {
        let refused = [
            ("redis+sentinel://:hunter2@a:1", "under which name"),
            ("redis+sentinel://:hunter2@a:1/?x=y", "under which name"),
            ("redis+sentinel://:hunter2@a:1,b:x/m", "a host in it"),
            ("redis+sentinel://:hunter2@a:1,,b/m", "a host in it"),
            ("redis+sentinel://:hunter2@/m", "malformed"),
            ("redis+sentinel://:hunter2@a/m/x", "malformed"),
            ("redis+sentinel://:hun/ter2@a/m", "malformed"),
            ("redis+cluster://:hunter2@a:1/2", "database 0 only"),
            ("redis+cluster://:hunter2@a b", "malformed"),
            ("http+cluster://:hunter2@a", "malformed"),
        ];
        for (url, reason) in refused {
            let error = parse(url).map(drop).expect_err(url).to_string();
            assert!(error.contains(reason), "{url}: {error}");
            assert!(!error.contains("ter2"), "{url}: {error}");
        }
    }
}
