//! Schemes of urls: what each leads to, and which parameters its urls have.

pub(crate) const DEFAULT_PORT: u16 = 6379;

/// What a scheme leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Server,
    /// A server's unix socket.
    Socket,
    Sentinel,
    Cluster,
}

const SCHEMES: &str = "`redis://`, `rediss://` (TLS), `valkey://`, `valkeys://` (TLS), `redis+unix://`, `redis+sentinel://`, \
                       `redis+cluster://` or `memory://`";

impl Kind {
    pub(super) fn of(scheme: &str) -> Option<Self> {
        let (base, kind) = match scheme.split_once('+') {
            None if scheme == "unix" => return Some(Self::Socket),
            None => (scheme, Self::Server),
            Some((base @ ("redis" | "valkey"), "unix")) => (base, Self::Socket),
            Some((base, "sentinel")) => (base, Self::Sentinel),
            Some((base, "cluster")) => (base, Self::Cluster),
            Some(_) => return None,
        };
        matches!(base, "redis" | "rediss" | "valkey" | "valkeys").then_some(kind)
    }

    pub(super) fn parameters(self) -> &'static [&'static str] {
        match self {
            Self::Server | Self::Cluster => &["db", "protocol"],
            Self::Socket => &["db", "protocol", "user", "pass", "password"],
            Self::Sentinel => &["db", "protocol", "sentinel_user", "sentinel_password"],
        }
    }

    pub(super) fn example(self) -> &'static str {
        match self {
            Self::Server => {
                "write it as in `redis://user:password@host:6379/0`, with special characters in the password percent-encoded"
            }
            Self::Socket => "write it as in `redis+unix:///run/redis.sock?db=1`",
            Self::Sentinel => {
                "write it as in `redis+sentinel://user:password@host:26379,host2:26379/service/0`"
            }
            Self::Cluster => "write it as in `redis+cluster://user:password@host:6379,host2:6379`",
        }
    }

    /// What to write instead of a parameter of another library.
    pub(super) fn hint(self, name: &str) -> Option<&'static str> {
        // Without case and underscores.
        Some(match &*name.to_ascii_lowercase().replace(['_', '-'], "") {
            "ssl" | "tls" | "usessl" | "usetls" => "a `rediss://` url asks for TLS",
            "sslcertreqs" | "sslcheckhostname" | "insecure" | "skipverify" | "tlsskipverify" => {
                "certificates are always checked, and the builder's `tls` says which ones count"
            }
            "prefix" | "keyprefix" | "namespace" => "the builder's `key_prefix` sets it",
            "timeout" | "sockettimeout" | "commandtimeout" | "readtimeout" | "writetimeout"
            | "responsetimeout" => "the builder's `command_timeout` and `connect_timeout` set it",
            "connecttimeout" | "connectiontimeout" | "socketconnecttimeout" | "dialtimeout" => {
                "the builder's `connect_timeout` sets it"
            }
            "database" | "dbnum" | "dbnumber" | "selecteddatabase" | "db" => "the database is `db`",
            "mastername" | "service" | "servicename" | "sentinelmaster" => {
                "the name of the primary follows the hosts, as in `redis+sentinel://host:26379/service`"
            }
            "user" | "username" | "pass" | "password" | "auth" | "pwd" => match self {
                Self::Socket => "write `user` and `pass`",
                _ => "it is written before the host, as in `redis://user:password@host`",
            },
            _ => return None,
        })
    }
}

pub(super) fn unknown_scheme(scheme: &str) -> String {
    let is_one = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    if scheme == "memory" {
        return "`memory://` stands alone, without a host or a path".to_owned();
    }
    if !scheme.is_empty() && scheme.chars().all(is_one) {
        return format!("`{scheme}://` is no scheme that lock-core knows: use {SCHEMES}");
    }
    without_a_scheme("")
}

/// Only a known scheme may be shown of such a text, since the text may begin with a password.
pub(super) fn without_a_scheme(text: &str) -> String {
    let example = Kind::Server.example();
    let scheme = text.split_once(':').map_or("", |(scheme, _)| scheme);
    if Kind::of(scheme).is_some() {
        return format!(
            "the url `{scheme}:…` is malformed: `//` is missing behind `{scheme}:`; {example}"
        );
    }
    format!("the url has no scheme: it begins with {SCHEMES}; {example}")
}
