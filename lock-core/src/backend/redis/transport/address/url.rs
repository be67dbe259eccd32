//! The meaning of a server's url. The `redis` crate parses users, passwords, hosts and paths. This file parses the
//! schemes, the lists of hosts, and the parameters, because that crate ignores those that it does not know.
//!
//! No part of a url is ignored: two services that read one url differently would not exclude each other. An error never quotes
//! text that may be a part of a password.

use percent_encoding::percent_decode_str;
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _, ProtocolVersion, RedisError};

use crate::{credentials::Credentials, error::LockError};

const SCHEMES: &str = "`redis://`, `rediss://` (TLS), `valkey://`, `valkeys://` (TLS), `redis+unix://`, `redis+sentinel://`, \
                       `redis+cluster://` or `memory://`";

const MALFORMED: &str = "its user, password, host or port is malformed: special characters in a user or password are \
                         percent-encoded, an IPv6 address stands in brackets, and a port is a number up to 65535";

const AT_AFTER_THE_HOST: &str = "an `@` follows the host: in a user or password, `/`, `?`, `#` and `@` are written `%2F`, `%3F`, `%23` and \
                                 `%40`";

const SPACE: &str = "it has a space or a control character: a space is written `%20`";

const FRAGMENT: &str = "a fragment (`#…`) has no meaning here: certificates are always checked, and the builder's `tls` says which ones \
                        count";

const SEVERAL_HOSTS: &str = "it has several hosts: a cluster has a `redis+cluster://` url, sentinels have a `redis+sentinel://` one, and \
                             independent servers have one url each, with commas between them";

const NO_PRIMARY: &str = "the name of the primary is missing: it follows the hosts";

/// A url that is well-formed, has only known parameters, and has one meaning.
pub(crate) struct ServerUrl {
    pub(crate) kind: Kind,
    pub(super) is_over_tls: bool,
    /// The servers in it, at least one.
    pub(crate) servers: Vec<ConnectionAddr>,
    /// `true` if the server is an endpoint in front of several shards.
    pub(crate) is_sharded: bool,
    /// The name by which sentinels know their primary.
    pub(crate) name: String,
    pub(super) database: u32,
    /// The version of the protocol to begin with.
    pub(super) protocol: ProtocolVersion,
    pub(super) credentials: Option<Credentials>,
    /// The credentials of the sentinels, which have their own users.
    pub(crate) sentinel_credentials: Option<Credentials>,
    /// The url without the user, the password and the query.
    pub(super) shown: String,
}

/// The kind of server that a scheme names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Server,
    /// A server's unix socket.
    Socket,
    Sentinel,
    Cluster,
}

impl Kind {
    fn of(scheme: &str) -> Option<Self> {
        let (base, kind) = match scheme.split_once('+') {
            None if scheme == "unix" => ("redis", Self::Socket),
            None => (scheme, Self::Server),
            Some((base @ ("redis" | "valkey"), "unix")) => (base, Self::Socket),
            Some((base, "sentinel")) => (base, Self::Sentinel),
            Some((base, "cluster")) => (base, Self::Cluster),
            Some(_) => return None,
        };
        matches!(base, "redis" | "rediss" | "valkey" | "valkeys").then_some(kind)
    }

    fn parameters(self) -> &'static [&'static str] {
        match self {
            Self::Server => &["db", "protocol", "sharded"],
            Self::Cluster => &["db", "protocol"],
            Self::Socket => &["db", "protocol", "user", "pass", "password"],
            Self::Sentinel => &["db", "protocol", "sentinel_user", "sentinel_password"],
        }
    }

    fn example(self) -> &'static str {
        match self {
            Self::Server => "redis://user:password@host:6379/0",
            Self::Socket => "redis+unix:///run/redis.sock?user=name&pass=word&db=0",
            Self::Sentinel => "redis+sentinel://user:password@host:26379,host2:26379/service/0",
            Self::Cluster => "redis+cluster://user:password@host:6379,host2:6379",
        }
    }
}

impl ServerUrl {
    pub(crate) fn parse(text: &str) -> Result<Self, LockError> {
        let parts = text.split_once("://");
        let known = parts.and_then(|(scheme, rest)| Some((scheme, Kind::of(scheme)?, rest)));
        let (scheme, kind, rest) = known.ok_or_else(|| LockError::invalid(no_scheme(text)))?;
        Self::read(scheme, kind, rest).map_err(|reason| {
            let example = kind.example();
            LockError::invalid(format!(
                "the url `{scheme}://…` is refused: {reason}; write it as in `{example}`"
            ))
        })
    }

    fn read(scheme: &str, kind: Kind, rest: &str) -> Result<Self, String> {
        let (authority, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let (user, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (path, query) = tail.split_once('?').unwrap_or((tail, ""));
        let (name, database) = match (kind, path.trim_matches('/')) {
            (Kind::Socket, _) => ("", ""),
            (Kind::Server | Kind::Cluster, database) => ("", database),
            (Kind::Sentinel, path) => path.split_once('/').unwrap_or((path, "")),
        };
        let is_space = |c: char| c.is_whitespace() || c.is_control();
        let forbid = |is_there, rule| if is_there { Err(rule) } else { Ok(()) };
        // Checked first, since the shown form of a url must not contain a part of a password.
        forbid(tail.contains('@'), AT_AFTER_THE_HOST)?;
        forbid(rest.contains(is_space), SPACE)?;
        forbid(tail.contains('#'), FRAGMENT)?;
        forbid(kind == Kind::Server && hosts.contains(','), SEVERAL_HOSTS)?;
        forbid(kind == Kind::Sentinel && name.is_empty(), NO_PRIMARY)?;
        let parameters = parameters(kind, query)?;
        let parameter = |wanted: &str| {
            let mut parameters = parameters.iter();
            parameters.find_map(|(name, value)| (name == wanted).then_some(&**value))
        };
        let servers = hosts.split(',').map(|host| match kind {
            Kind::Socket => server(&format!("unix://{authority}{path}"), 0),
            Kind::Sentinel => server(&format!("redis://{user}@{host}"), 26_379),
            Kind::Server | Kind::Cluster => server(&format!("redis://{user}@{host}"), 6_379),
        });
        let servers = servers.collect::<Result<Vec<_>, _>>()?;
        let settings = servers[0].redis_settings();
        let user = settings.username().or(parameter("user"));
        let password = parameter("pass").or(parameter("password"));
        let of_sentinels = (parameter("sentinel_user"), parameter("sentinel_password"));
        Ok(Self {
            kind,
            is_over_tls: scheme.starts_with("rediss") || scheme.starts_with("valkeys"),
            is_sharded: match parameter("sharded") {
                None | Some("false") => false,
                Some("true") => true,
                Some(_) => return Err("the parameter `sharded` is `true` or `false`".to_owned()),
            },
            name: percent_decode_str(name).decode_utf8_lossy().into_owned(),
            database: database_of(kind, database, parameter("db"))?,
            protocol: match parameter("protocol") {
                None | Some("3" | "resp3" | "RESP3") => ProtocolVersion::RESP3,
                Some("2" | "resp2" | "RESP2") => ProtocolVersion::RESP2,
                Some(_) => return Err("the parameter `protocol` is `2` or `3`".to_owned()),
            },
            credentials: credentials(user, settings.password().or(password))?,
            sentinel_credentials: credentials(of_sentinels.0, of_sentinels.1)?,
            shown: match (kind, place_of(servers[0].addr())) {
                (Kind::Server, Some((host, port))) => place(scheme, host, port) + path,
                _ => format!("{scheme}://{hosts}{path}"),
            },
            servers: servers.iter().map(|info| info.addr().clone()).collect(),
        })
    }
}

/// Returns a server in the form of a url.
pub(super) fn place(scheme: &str, host: &str, port: u16) -> String {
    if host.contains(':') {
        format!("{scheme}://[{host}]:{port}")
    } else {
        format!("{scheme}://{host}:{port}")
    }
}

/// Returns the host and the port; `None` for a socket.
pub(crate) fn place_of(addr: &ConnectionAddr) -> Option<(&str, u16)> {
    match addr {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            Some((host, *port))
        }
        _ => None,
    }
}

/// Returns the names and values of a query, each of them known and given once.
fn parameters(kind: Kind, query: &str) -> Result<Vec<(String, String)>, String> {
    let url = redis::parse_redis_url(&format!("unix:///?{query}")).ok_or(MALFORMED)?;
    let parameters: Vec<(String, String)> = url.query_pairs().into_owned().collect();
    let known = kind.parameters();
    for (index, (name, _)) in parameters.iter().enumerate() {
        if !known.contains(&&**name) {
            let known = known.join("`, `");
            return Err(format!(
                "the parameter {name:?} is not known here; the known ones are `{known}`"
            ));
        }
        // A socket's url accepts both names for the password.
        let is_password = |name: &str| matches!(name, "pass" | "password");
        let mut before = parameters[..index].iter();
        if before.any(|(other, _)| other == name || is_password(other) && is_password(name)) {
            return Err(format!("the parameter `{name}` is given twice"));
        }
    }
    Ok(parameters)
}

/// Reads the url of one server.
fn server(url: &str, default_port: u16) -> Result<ConnectionInfo, String> {
    let mut url = redis::parse_redis_url(url).ok_or(MALFORMED)?;
    if url.port().is_none() && url.has_host() {
        url.set_port(Some(default_port)).map_err(|()| MALFORMED)?;
    }
    // Without the details at the end, which may quote the url.
    let reason = |error: RedisError| error.to_string().split(" - ").take(1).collect();
    url.into_connection_info().map_err(reason)
}

/// Returns the number of the database, from the path or from `db`.
fn database_of(kind: Kind, in_path: &str, by_name: Option<&str>) -> Result<u32, String> {
    let number = match (in_path, by_name) {
        ("", None) => "0",
        (number, None) | ("", Some(number)) => number,
        (one, Some(other)) if one == other => one,
        _ => return Err("it names two databases, one in the path and one by `db`".to_owned()),
    };
    match number.parse() {
        Ok(1..) if kind == Kind::Cluster => Err("a cluster has only the database 0".to_owned()),
        number => number.map_err(|_| "the database is not a number".to_owned()),
    }
}

fn credentials(user: Option<&str>, password: Option<&str>) -> Result<Option<Credentials>, String> {
    match (user.unwrap_or_default(), password.unwrap_or_default()) {
        ("", "") => Ok(None),
        (_, "") => Err("it has a user without a password: `:password@` has no user".to_owned()),
        (user, password) => Ok(Some(Credentials::new(user, password))),
    }
}

/// Returns the reason why a text does not begin with a known scheme. Only a scheme before `://` is shown, since the text may
/// begin with a password.
fn no_scheme(text: &str) -> String {
    let is_scheme = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    match (text.chars().next(), text.split_once("://")) {
        (None, _) => "the url is empty: is the variable set?".to_owned(),
        (Some(first), _) if first.is_whitespace() || "\"'`".contains(first) => format!(
            "the url begins with the character {first:?}: remove the spaces and quotation marks, which some tools leave in the value of a variable"
        ),
        (_, Some(("memory", _))) => {
            "`memory://` is written alone, without a host or a path".to_owned()
        }
        (_, Some((scheme, _))) if scheme.chars().all(is_scheme) => {
            format!("`{scheme}://` is not a scheme that lock-core knows: use {SCHEMES}")
        }
        _ => format!("the url has no scheme: it must begin with {SCHEMES}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_are_refused(urls: &[(&str, &str)]) {
        for (url, says) in urls {
            let error = ServerUrl::parse(url).map(drop).expect_err(url).to_string();
            assert!(error.contains(says), "{url}: {error}");
            assert!(!error.contains("ter2"), "{url}: {error}");
        }
    }

    #[test]
    fn every_scheme_has_the_kind_that_it_names() {
        for (url, kind, is_over_tls) in [
            ("redis://h", Kind::Server, false),
            ("valkey://h", Kind::Server, false),
            ("rediss://h", Kind::Server, true),
            ("valkeys://h", Kind::Server, true),
            ("unix:///s", Kind::Socket, false),
            ("redis+unix:///s", Kind::Socket, false),
            ("valkey+unix:///s", Kind::Socket, false),
            ("redis+sentinel://h/m", Kind::Sentinel, false),
            ("rediss+sentinel://h/m", Kind::Sentinel, true),
            ("valkeys+sentinel://h/m", Kind::Sentinel, true),
            ("redis+cluster://h", Kind::Cluster, false),
            ("rediss+cluster://h", Kind::Cluster, true),
            ("valkeys+cluster://h", Kind::Cluster, true),
        ] {
            let read = ServerUrl::parse(url).expect(url);
            assert_eq!((read.kind, read.is_over_tls), (kind, is_over_tls), "{url}");
        }
    }

    #[test]
    fn a_malformed_url_is_refused_without_its_secret() {
        all_are_refused(&[
            ("", "is the variable set?"),
            (" redis://:hunter2@host", "begins with the character ' '"),
            (
                "\"redis://:hunter2@host\"",
                "begins with the character '\"'",
            ),
            ("'redis://:hunter2@host'", "begins with the character '\\''"),
            ("127.0.0.1:6379", "no scheme"),
            ("hunter2@host", "no scheme"),
            ("redis//:hunter2@host", "no scheme"),
            ("redis:hunter2@host", "no scheme"),
            (":hunter2@redis://host", "no scheme"),
            ("http://:hunter2@host", "`http://` is not a scheme"),
            ("rediss+unix:///hunter2", "`rediss+unix://` is not a scheme"),
            ("redis+://hunter2", "`redis+://` is not a scheme"),
            ("memory://x", "alone"),
            ("redis://", "Missing hostname"),
            ("redis://:6379", "malformed"),
            ("redis:///3", "Missing hostname"),
            ("redis://:hunter2@", "malformed"),
            ("redis://:hunter2@ho st", "a control character"),
            ("redis://:hun ter2@host", "a space"),
            ("redis://:hunter2@host?db=\t3", "a control character"),
            ("redis://:hunter2@host:port", "malformed"),
            ("redis://user:hunter2", "malformed"),
            ("redis://:hunter2@host:99999", "malformed"),
            ("redis://:hunter2@::1", "malformed"),
            ("redis://:hunter2@fe80::1:6379/0", "malformed"),
            ("redis://:hunter2@[::1", "malformed"),
            ("redis://:hunter2@[hunter2]", "malformed"),
            ("redis://:hunter2@[::1]6379", "malformed"),
            ("redis://:hunter2%ff@host", "not valid UTF-8"),
            ("redis://:hun/ter2?@host:port", "an `@` follows the host"),
            ("redis://app:2024/hunter2@db", "an `@` follows the host"),
            ("redis://h?unter2@db", "an `@` follows the host"),
            ("redis://h#unter2@db", "an `@` follows the host"),
        ]);
    }

    #[test]
    fn a_url_with_no_meaning_or_two_meanings_is_refused() {
        all_are_refused(&[
            ("redis://hunter2@host", "user without a password"),
            ("redis://hunter2:@host", "user without a password"),
            ("redis://:hunter2@a,b", "it has several hosts"),
            ("rediss://:hunter2@host#insecure", "always checked"),
            ("redis://:hunter2@host/3#hunter2", "a fragment"),
            ("redis://:hunter2@host/db", "database is not a number"),
            ("redis://:hunter2@host/-3", "database is not a number"),
            ("redis://:hunter2@host/1/2", "database is not a number"),
            (
                "redis://:hunter2@host/99999999999",
                "database is not a number",
            ),
            (
                "redis://:hunter2@host?db=hunter2",
                "database is not a number",
            ),
            ("redis://:hunter2@host?db=", "database is not a number"),
            ("redis://:hunter2@host/3?db=4", "two databases"),
            ("redis://:hunter2@host/0?db=3", "two databases"),
            ("redis://:hunter2@host?db=3&db=3", "`db` is given twice"),
            ("redis://:hunter2@host?protocol=hunter2", "is `2` or `3`"),
            ("redis+unix://host/run/r.sock?pass=hunter2", "Missing path"),
            ("redis+unix://:hunter2@/run/r.sock", "malformed"),
            (
                "redis+unix:///s?pass=hunter2&password=hunter2",
                "given twice",
            ),
            ("redis+unix:///s?user=hunter2", "user without a password"),
        ]);
    }

    #[test]
    fn an_unknown_parameter_is_named_together_with_the_known_ones() {
        all_are_refused(&[
            (
                "redis://h?DB=3",
                "\"DB\" is not known here; the known ones are `db`, `protocol`",
            ),
            ("redis://h?password=hunter2", "\"password\" is not known"),
            (
                "redis+unix:///s?username=hunter2",
                "`db`, `protocol`, `user`, `pass`",
            ),
            (
                "redis+sentinel://h/m?master_name=x",
                "`sentinel_user`, `sentinel_password`",
            ),
            (
                "redis+cluster://h?read_from_replicas=true",
                "the known ones are `db`, `protocol`",
            ),
            ("redis://h?%0Ax=1", "\"\\nx\" is not known"),
        ]);
    }
}
