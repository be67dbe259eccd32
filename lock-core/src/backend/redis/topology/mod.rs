//! From a url to its servers: one server, the primary that sentinels know, or the nodes of a cluster.

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    backend::{
        redis::{
            topology::{sentinel::Service, subscribed_channels::SubscribedChannels},
            transport::{
                address::{
                    Address, Named,
                    security::Security,
                    url::{Kind, ServerUrl, place_of},
                },
                connection_events::ConnectionEvents,
            },
        },
        timing::Timing,
    },
    credentials::CredentialsProvider,
    error::LockError,
};

pub(crate) mod cluster;
pub(crate) mod companions;
pub(crate) mod key_location;
mod primary_choice;
mod replica_acks;
pub(crate) mod sentinel;
pub(crate) mod server;
pub(crate) mod servers;
pub(crate) mod sharded_subscription;
pub(crate) mod shards;
mod slot_ranges;
pub(crate) mod subscribed_channels;

/// The kinds of servers that keep the locks.
#[derive(Clone, Debug)]
pub(super) enum Topology {
    Single(Address),
    /// An endpoint in front of several shards.
    Shards(Address),
    Sentinel(Service),
    Cluster(Seeds),
}

/// The nodes of a cluster that are asked about the other nodes.
#[derive(Clone, Debug)]
pub(crate) struct Seeds {
    pub(super) nodes: Vec<Address>,
    /// The url as it is shown.
    pub(super) shown: Address,
}

/// User names and passwords that do not come from the url.
#[derive(Clone, Default)]
pub(crate) struct Access {
    pub(crate) server: Option<Arc<dyn CredentialsProvider>>,
    pub(crate) sentinel: Option<Arc<dyn CredentialsProvider>>,
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").finish_non_exhaustive()
    }
}

/// The settings of every server of a manager.
#[derive(Clone, Debug)]
pub(crate) struct ServerSettings {
    pub(crate) timing: Timing,
    /// A random name of the manager.
    pub(crate) manager: Arc<str>,
    pub(crate) events: Arc<dyn Dispatch>,
    pub(crate) replicas: Option<Replicas>,
}

/// How many replicas must have a lock before it counts, and how long that may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replicas {
    pub(crate) least: u32,
    pub(crate) within: Duration,
}

/// Creates the listeners for the connections of a manager.
pub(crate) trait Dispatch: fmt::Debug + Send + Sync {
    /// Creates the listener for a connection that subscribes to this channel first.
    fn of_channel(&self, channel: Arc<str>) -> Arc<dyn ConnectionEvents>;

    /// Creates the listener for a connection whose channels are subscribed to one by one.
    fn of_channels(&self, channels: Arc<SubscribedChannels>) -> Arc<dyn ConnectionEvents>;
}

impl Topology {
    /// `label` is that of the manager, as a part of the connections' names.
    pub(super) fn of(
        server: &Named,
        access: &Access,
        security: &Security,
        label: Option<&Arc<str>>,
    ) -> Result<Self, LockError> {
        let own = |address: Address| address.for_manager(access.server.as_ref(), label);
        let url = match server {
            Named::Url(url) => ServerUrl::parse(url)?,
            Named::Client(client) => {
                return Ok(Self::Single(own(Address::of_client((**client).clone()))));
            }
        };
        let address = own(Address::of(&url, security)?);
        let servers =
            (url.servers.iter().filter_map(place_of)).map(|(host, port)| address.at(host, port));
        Ok(match url.kind {
            Kind::Server if url.is_sharded => Self::Shards(address),
            Kind::Server | Kind::Socket => Self::Single(address),
            Kind::Sentinel => {
                let given = url.sentinel_credentials.clone();
                let credentials = access.sentinel.clone();
                let credentials = credentials.or(given.map(|given| Arc::new(given) as _));
                let sentinel = |server: Address| server.of_sentinel(credentials.clone());
                Self::Sentinel(Service {
                    name: url.name.clone(),
                    sentinels: servers.map(sentinel).collect(),
                    primary: address.clone(),
                })
            }
            Kind::Cluster => Self::Cluster(Seeds {
                nodes: servers.collect(),
                shown: address.clone(),
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::{Credentials, tests::given};
    use proptest::prelude::*;

    fn parse(url: &str) -> Result<Topology, LockError> {
        parse_for(url, &Access::default())
    }

    fn parse_for(url: &str, access: &Access) -> Result<Topology, LockError> {
        Topology::of(
            &Named::Url(url.to_owned()),
            access,
            &Security::default(),
            None,
        )
    }

    fn places(addresses: &[Address]) -> Vec<(String, u16)> {
        let place = |address: &Address| {
            let (host, port) = address.place().expect("no socket");
            (host.to_owned(), port)
        };
        addresses.iter().map(place).collect()
    }

    fn password(address: &Address) -> Option<String> {
        address
            .credentials()
            .map(|credentials| given(&**credentials).password)
    }

    #[test]
    fn a_url_names_sentinels_and_their_service() {
        let url = "redis+sentinel://app:pa%2Css@a,b:1,[::1]:2/my%20master/3?sentinel_password=x";
        let Ok(Topology::Sentinel(service)) = parse(url) else {
            panic!("refused");
        };
        assert_eq!(service.name, "my master");
        let hosts = [("a", 26_379), ("b", 1), ("::1", 2)];
        let hosts = hosts.map(|(host, port)| (host.to_owned(), port));
        assert_eq!(places(&service.sentinels), hosts);
        for sentinel in &service.sentinels {
            assert_eq!(password(sentinel).as_deref(), Some("x"));
            assert_eq!(sentinel.database(), 0);
        }
        assert_eq!(password(&service.primary).as_deref(), Some("pa,ss"));
        assert_eq!(service.primary.database(), 3);
        assert_eq!(
            service.primary.shown(),
            "redis+sentinel://a,b:1,[::1]:2/my%20master/3"
        );
    }

    #[test]
    fn a_url_names_nodes_of_a_cluster() {
        let Ok(Topology::Cluster(seeds)) = parse("valkey+cluster://:pw@a:1,b") else {
            panic!("refused");
        };
        let hosts = [("a".to_owned(), 1), ("b".to_owned(), 6_379)];
        assert_eq!(places(&seeds.nodes), hosts);
        assert!(
            seeds
                .nodes
                .iter()
                .all(|node| password(node).as_deref() == Some("pw"))
        );
        assert_eq!(seeds.shown.shown(), "valkey+cluster://a:1,b");
    }

    #[test]
    fn shards_behind_one_endpoint_are_named_by_a_parameter() {
        let is_sharded = |url| matches!(parse(url), Ok(Topology::Shards(_)));
        assert!(is_sharded("redis://:pw@a/0?sharded=true&protocol=2"));
        assert!(!is_sharded("redis://a?sharded=false") && !is_sharded("redis://a"));
        all_are_refused(&[
            ("redis://a?sharded=1", "`sharded` is `true` or `false`"),
            ("redis://a?sharded=true&sharded=true", "given twice"),
            ("redis+cluster://a?sharded=true", "not known here"),
        ]);
    }

    #[test]
    fn users_set_by_the_builder_take_precedence_over_the_url() {
        let credentials = |password: &str| -> Option<Arc<dyn CredentialsProvider>> {
            Some(Arc::new(Credentials::new("", password)))
        };
        let access = Access {
            server: credentials("one"),
            sentinel: credentials("two"),
        };
        let Ok(Topology::Sentinel(service)) = parse_for("redis+sentinel://:old@a/m", &access)
        else {
            panic!("refused");
        };
        assert_eq!(password(&service.primary).as_deref(), Some("one"));
        assert_eq!(password(&service.sentinels[0]).as_deref(), Some("two"));
    }

    proptest! {
        #[test]
        fn parsing_a_url_never_panics_or_shows_its_password(
            scheme in "(redis|rediss|valkey|http|redis[+](sentinel|cluster|unix)|)",
            user in "[a-z]{0,4}",
            odd in r"[:@/?#,%\[\] a-z]{0,6}",
            rest in r"[a-z0-9.:,/\[\]?=&%@ ]{0,24}",
        ) {
            for url in [
                format!("{scheme}://{user}:s3cr3t{odd}@{rest}"),
                format!("{scheme}://{user}:{odd}s3cr3t@{rest}"),
                format!("{scheme}://{rest}?sentinel_password=s3cr3t"),
                format!("{scheme}://{rest}?pass=s3cr3t&{user}{odd}"),
            ] {
                let text = match parse(&url) {
                    Ok(Topology::Single(address) | Topology::Shards(address)) => address.shown().to_owned(),
                    Ok(Topology::Sentinel(service)) => format!("{service:?}"),
                    Ok(Topology::Cluster(seeds)) => format!("{seeds:?}"),
                    Err(error) => format!("{error} {error:?}"),
                };
                prop_assert!(!text.contains("s3cr3t"), "{}: {}", url, text);
            }
        }
    }

    #[test]
    fn a_refused_url_says_why_and_where_without_its_secret() {
        let refused = [
            ("redis+sentinel://:hunter2@a:1", "the primary is missing"),
            (
                "redis+sentinel://:hunter2@a:1/?db=3",
                "the primary is missing",
            ),
            ("redis+sentinel://:hunter2@a:1,b:x/m", "malformed"),
            ("redis+sentinel://:hunter2@a:1,,b/m", "malformed"),
            (
                "redis+sentinel://:hunter2@a/m/x",
                "database is not a number",
            ),
            (
                "redis+sentinel://:hunter2@a/m/1/2",
                "database is not a number",
            ),
            ("redis+sentinel://:hun/ter2@a/m", "an `@` follows the host"),
            ("redis+sentinel://:hunter2@a/m/1?db=2", "two databases"),
            (
                "redis+sentinel://a/m?sentinel_user=hunter2",
                "user without a password",
            ),
            ("redis+cluster://:hunter2@a b", "a space"),
            ("redis+cluster://:hunter2@[::1,b", "malformed"),
            (
                "http+cluster://:hunter2@a",
                "`http+cluster://` is not a scheme",
            ),
        ];
        all_are_refused(&refused);
    }

    #[test]
    fn a_cluster_has_one_database_and_no_path() {
        all_are_refused(&[
            ("redis+cluster://:hunter2@a:1/2", "only the database 0"),
            ("redis+cluster://:hunter2@a:1?db=2", "only the database 0"),
            ("redis+cluster://:hunter2@a:1/0/0", "not a number"),
        ]);
    }

    fn all_are_refused(refused: &[(&str, &str)]) {
        for (url, reason) in refused {
            let error = parse(url).map(drop).expect_err(url).to_string();
            assert!(error.contains(reason), "{url}: {error}");
            assert!(!error.contains("ter2"), "{url}: {error}");
        }
    }
}
