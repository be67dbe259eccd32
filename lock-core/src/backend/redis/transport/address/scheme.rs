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
                "`redis://user:password@host:6379/0`, with special characters in the password percent-encoded"
            }
            Self::Socket => "`redis+unix:///run/redis.sock?db=1`",
            Self::Sentinel => "`redis+sentinel://user:password@host:26379,host2:26379/service/0`",
            Self::Cluster => "`redis+cluster://user:password@host:6379,host2:6379`",
        }
    }

    /// What to write instead of a parameter of another library.
    pub(super) fn hint(self, name: &str) -> &'static str {
        let name = name.to_ascii_lowercase();
        let has = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
        if has(&["cert", "hostname", "verify", "insecure"]) {
            ": certificates are always checked, and the builder's `tls` says which ones count"
        } else if has(&["ssl", "tls"]) {
            ": a `rediss://` url asks for TLS"
        } else if has(&["prefix", "namespace"]) {
            ": the builder's `key_prefix` sets it"
        } else if has(&["timeout"]) {
            ": the builder's `command_timeout` and `connect_timeout` set it"
        } else if has(&["master", "service"]) {
            ": the name of the primary follows the hosts"
        } else if has(&["sentinel"]) || !has(&["user", "pass", "auth", "pwd"]) {
            ""
        } else if self == Self::Socket {
            ": write `user` and `pass`"
        } else {
            ": it is written before the host, as in `redis://user:password@host`"
        }
    }
}

/// Why a text does not begin with a known scheme. Only a known one is shown if no `://` follows, since the text may begin with a
/// password.
pub(super) fn unknown(text: &str) -> String {
    match text.chars().next() {
        None => return "the url is empty: is the variable set?".to_owned(),
        Some(first) if first.is_whitespace() => {
            return format!(
                "the url begins with the character {first:?}: write it without spaces around it"
            );
        }
        Some(first @ ('"' | '\'' | '`')) => {
            return format!(
                "the url begins with the character {first}: take the quotation marks away, as some tools keep those of a variable"
            );
        }
        _ => {}
    }
    let (scheme, rest) = text.split_once(':').unwrap_or_default();
    let is_one = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    let is_url = rest.starts_with("//") && !scheme.is_empty() && scheme.chars().all(is_one);
    let example = Kind::Server.example();
    match Kind::of(scheme) {
        Some(_) => format!(
            "the url `{scheme}:…` is malformed: `//` is missing behind `{scheme}:`; write it as in {example}"
        ),
        None if is_url && scheme == "memory" => {
            "`memory://` stands alone, without a host or a path".to_owned()
        }
        None if is_url => {
            format!("`{scheme}://` is no scheme that lock-core knows: use {SCHEMES}")
        }
        None => {
            format!("the url has no scheme: it begins with {SCHEMES}; write it as in {example}")
        }
    }
}
