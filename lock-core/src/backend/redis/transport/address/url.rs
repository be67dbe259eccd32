//! What a server's url means.
//!
//! An error says what is wrong and where, and never quotes the text, which may be a part of a password. No part of a url is
//! ignored: two services that read one url differently would not exclude each other.

use percent_encoding::percent_decode_str;
use redis::ProtocolVersion;

use crate::{
    backend::redis::transport::address::{
        parts::Parts,
        scheme::{Kind, unknown},
    },
    credentials::Credentials,
    error::LockError,
};

/// A url that is well-formed, has only known parameters, and has one meaning.
pub(crate) struct ServerUrl {
    pub(crate) kind: Kind,
    pub(crate) is_over_tls: bool,
    /// The hosts, with the ports that were given. Only the url of a socket has none.
    pub(crate) hosts: Vec<(String, Option<u16>)>,
    /// The path of a socket, or the name by which sentinels know their primary.
    pub(crate) name: String,
    pub(crate) database: u32,
    /// The version of the protocol to begin with.
    pub(crate) protocol: ProtocolVersion,
    pub(crate) credentials: Option<Credentials>,
    /// Sentinels have users of their own.
    pub(crate) sentinel_credentials: Option<Credentials>,
    /// The url without the user, the password and the query.
    pub(crate) shown: String,
}

impl ServerUrl {
    pub(crate) fn parse(text: &str) -> Result<Self, LockError> {
        let parts = text.split_once("://");
        let known = parts.and_then(|(scheme, rest)| Some((scheme, Kind::of(scheme)?, rest)));
        let (scheme, kind, rest) = known.ok_or_else(|| LockError::invalid(unknown(text)))?;
        let refused = |what: &str, reason: String| {
            let example = kind.example();
            LockError::invalid(format!(
                "the url `{what}: {reason}; write it as in {example}"
            ))
        };
        let parts = Parts::read(kind, rest)
            .map_err(|reason| refused(&format!("{scheme}://…` is malformed"), reason))?;
        let shown = parts.shown(scheme, kind);
        let cannot = format!("{shown}` cannot be used");
        Self::meant(parts, scheme, kind, shown).map_err(|reason| refused(&cannot, reason))
    }

    /// Refuses urls that are well-formed and have no meaning, or two meanings.
    fn meant(parts: Parts<'_>, scheme: &str, kind: Kind, shown: String) -> Result<Self, String> {
        check_parameters(kind, &parts.parameters)?;
        let parameter = |wanted: &str| {
            let mut parameters = parts.parameters.iter();
            parameters.find_map(|(name, value)| (name == wanted).then_some(value.as_str()))
        };
        let (user, password) = match kind {
            Kind::Socket if !parts.user.is_empty() || !parts.password.is_empty() => {
                return Err("the user and password of a socket stand in the query, as in `?user=name&pass=word`".to_owned());
            }
            Kind::Socket => {
                let password = parameter("pass").or(parameter("password"));
                (parameter("user"), password)
            }
            _ => (Some(&*parts.user), Some(&*parts.password)),
        };
        let (name, database) = path(&parts, kind)?;
        let database = database_of(database, parameter("db"))?;
        if kind == Kind::Cluster && database != 0 {
            return Err("a cluster has the database 0 only".to_owned());
        }
        Ok(Self {
            kind,
            is_over_tls: scheme.starts_with("rediss") || scheme.starts_with("valkeys"),
            name: percent_decode_str(name).decode_utf8_lossy().into_owned(),
            database,
            protocol: match parameter("protocol") {
                None | Some("3" | "resp3" | "RESP3") => ProtocolVersion::RESP3,
                Some("2" | "resp2" | "RESP2") => ProtocolVersion::RESP2,
                Some(_) => return Err("the parameter `protocol` is `2` or `3`".to_owned()),
            },
            credentials: credentials(user, password)?,
            sentinel_credentials: credentials(
                parameter("sentinel_user"),
                parameter("sentinel_password"),
            )?,
            hosts: parts.hosts,
            shown,
        })
    }
}

/// The name and the database in a path, as it was written.
fn path<'a>(parts: &Parts<'a>, kind: Kind) -> Result<(&'a str, Option<&'a str>), String> {
    let path = parts.path.strip_prefix('/').unwrap_or(parts.path);
    let path = path.strip_suffix('/').unwrap_or(path);
    let segments: Vec<_> = path.split('/').collect();
    let refused = match (kind, &segments[..]) {
        (Kind::Server, _) if parts.hosts.len() > 1 => {
            "it has several hosts: a cluster has a `redis+cluster://` url, sentinels have a `redis+sentinel://` one, and \
             independent servers have one url each, with commas between them"
        }
        (Kind::Socket, _) if parts.authority.is_empty() && parts.path.len() > 1 => {
            return Ok((parts.path, None));
        }
        (Kind::Socket, _) => "it needs the whole path of a socket",
        (Kind::Server | Kind::Cluster, [""]) => return Ok(("", None)),
        (Kind::Server | Kind::Cluster, [database]) => return Ok(("", Some(database))),
        (Kind::Server, _) => {
            "its path has more than one part: the number of the database stands alone"
        }
        (Kind::Cluster, _) => "nothing may follow the hosts of a cluster",
        (Kind::Sentinel, [""] | ["", _]) => {
            "the name of the primary is missing: it follows the hosts"
        }
        (Kind::Sentinel, [name]) => return Ok((name, None)),
        (Kind::Sentinel, [name, database]) => return Ok((name, Some(database))),
        (Kind::Sentinel, _) => {
            "its path has more than the name of the primary and the number of the database"
        }
    };
    Err(refused.to_owned())
}

fn check_parameters(kind: Kind, parameters: &[(String, String)]) -> Result<(), String> {
    let known = kind.parameters();
    for (index, (name, _)) in parameters.iter().enumerate() {
        if !known.contains(&name.as_str()) {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
            let shown = match name.len() {
                1..=32 if name.chars().all(is_plain) => format!("the parameter `{name}`"),
                _ => "a parameter in it".to_owned(),
            };
            let (hint, known) = (kind.hint(name), known.join("`, `"));
            return Err(format!(
                "{shown} is not known here{hint}; known are `{known}`"
            ));
        }
        // Both are the password of a socket.
        let is_password = |name: &str| matches!(name, "pass" | "password");
        let mut before = parameters[..index].iter();
        if before.any(|(other, _)| other == name || is_password(other) && is_password(name)) {
            return Err(format!(
                "the parameter `{name}` is given twice: write it once"
            ));
        }
    }
    Ok(())
}

fn credentials(user: Option<&str>, password: Option<&str>) -> Result<Option<Credentials>, String> {
    match (user.unwrap_or_default(), password.unwrap_or_default()) {
        ("", "") => Ok(None),
        (_, "") => Err(
            "it has a user without a password; without a user, it is written `:password@`"
                .to_owned(),
        ),
        (user, password) => Ok(Some(Credentials::new(user, password))),
    }
}

/// The number of the database: the one in the path, or `db`.
fn database_of(in_path: Option<&str>, by_name: Option<&str>) -> Result<u32, String> {
    let number = |text: &str| match text.parse() {
        Ok(number) if text.bytes().all(|byte| byte.is_ascii_digit()) => Ok(number),
        _ if text.is_empty() => Err("`db` is empty: write a number, or leave it out".to_owned()),
        _ => Err("the database is no number".to_owned()),
    };
    match (
        in_path.map(number).transpose()?,
        by_name.map(number).transpose()?,
    ) {
        (Some(one), Some(other)) if one != other => Err(
            "it names two databases, one in the path and one by `db`: write one of them".to_owned(),
        ),
        (one, other) => Ok(one.or(other).unwrap_or(0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text of the error for a url that must be refused.
    fn reason(url: &str) -> String {
        let refused = ServerUrl::parse(url).map(drop);
        refused.expect_err(url).to_string()
    }

    #[test]
    fn a_malformed_url_says_where_without_its_secret() {
        let refused = [
            ("", "is the variable set?"),
            (" redis://:hunter2@host", "begins with the character ' '"),
            ("\"redis://:hunter2@host\"", "begins with the character \""),
            ("'redis://:hunter2@host'", "begins with the character '"),
            ("127.0.0.1:6379", "no scheme"),
            ("hunter2@host", "no scheme"),
            ("redis//:hunter2@host", "no scheme"),
            ("redis:hunter2@host", "`//` is missing behind `redis:`"),
            ("redis:/hunter2@host", "`//` is missing behind `redis:`"),
            ("http://:hunter2@host", "`http://` is no scheme"),
            ("rediss+unix:///hunter2", "`rediss+unix://` is no scheme"),
            ("memory://x", "alone"),
            ("redis://", "the host is missing"),
            ("redis://:6379", "the host is missing"),
            ("redis:///3", "the host is missing"),
            ("redis://:hunter2@", "the host is missing"),
            ("redis://:hunter2@ho st", "a control character in the host"),
            ("redis://:hun ter2@host", "in the user or password"),
            ("redis://:hunter2@host/ 3", "in the path"),
            ("redis://:hunter2@host?db=\t3", "in the query"),
            ("redis://:hunter2@ho$t", "a character that no host has"),
            (
                "redis://:hunter2@host:port",
                "the port of the host is no number",
            ),
            ("redis://user:hunter2", "the port of the host is no number"),
            ("redis://:hunter2@host:99999", "out of range"),
            ("redis://:hunter2@host:0", "out of range"),
            (
                "redis://:hunter2@host:",
                "the port of the host is no number",
            ),
            (
                "redis://:hunter2@::1",
                "an IPv6 address is written between brackets",
            ),
            ("redis://:hunter2@fe80::1:6379/0", "between brackets"),
            (
                "redis://:hunter2@[::1",
                "the host is malformed: an IPv6 address",
            ),
            ("redis://:hunter2@[hunter2]", "between brackets"),
            ("redis://:hunter2@[::1]6379", "between brackets"),
            (
                "redis://:hun%ter2@host",
                "in the password is not followed by",
            ),
            (
                "redis://us%er:hunter2@host",
                "in the user is not followed by",
            ),
            ("redis://:hunter2@ho%2", "in the host is not followed by"),
            ("redis://:hunter2@host/%", "in the path is not followed by"),
            (
                "redis://:hunter2@host?db=%3",
                "in the query is not followed by",
            ),
            ("redis://:hunter2%ff@host", "in the password is not UTF-8"),
            ("redis://:hunter2%00@host", "a zero byte in the password"),
            ("redis://:h@unter2@host", "an `@` in the user or password"),
            ("redis://:hun/ter2?@host:port", "an `@` follows the host"),
            ("redis://app:2024/hunter2@db", "an `@` follows the host"),
            ("redis://h?unter2@db", "an `@` follows the host"),
            ("redis://h#unter2@db", "an `@` follows the host"),
        ];
        all_are_refused(&refused);
    }

    #[test]
    fn what_means_nothing_or_two_things_is_refused() {
        let refused = [
            ("redis://hunter2@host", "user without a password"),
            ("redis://hunter2:@host", "user without a password"),
            ("redis://:hunter2@a,b", "it has several hosts"),
            (
                "redis://:hunter2@host#insecure",
                "certificates are always checked",
            ),
            ("redis://:hunter2@host/3#hunter2", "a fragment"),
            ("redis://:hunter2@host/db", "database is no number"),
            ("redis://:hunter2@host/+3", "database is no number"),
            ("redis://:hunter2@host/99999999999", "database is no number"),
            ("redis://:hunter2@host?db=hunter2", "database is no number"),
            ("redis://:hunter2@host?db=", "`db` is empty"),
            ("redis://:hunter2@host?db", "`db` is empty"),
            ("redis://:hunter2@host/3?db=4", "two databases"),
            ("redis://:hunter2@host/0?db=3", "two databases"),
            ("redis://:hunter2@host?db=3&db=4", "`db` is given twice"),
            ("redis://:hunter2@host?db=3&db=3", "`db` is given twice"),
            (
                "redis://:hunter2@host?protocol=hunter2",
                "`protocol` is `2` or `3`",
            ),
            (
                "redis://:hunter2@host?protocol=",
                "`protocol` is `2` or `3`",
            ),
            ("redis+unix://host/run/r.sock?pass=hunter2", "whole path"),
            ("redis+unix:///", "whole path"),
            ("redis+unix://:hunter2@/run/r.sock", "stand in the query"),
            (
                "redis+unix:///s?pass=hunter2&password=hunter2",
                "given twice",
            ),
            ("redis+unix:///s?user=hunter2", "user without a password"),
        ];
        all_are_refused(&refused);
    }

    fn all_are_refused(urls: &[(&str, &str)]) {
        for (url, says) in urls {
            let error = reason(url);
            assert!(error.contains(says), "{url}: {error}");
            assert!(!error.contains("ter2"), "{url}: {error}");
        }
    }

    #[test]
    fn a_parameter_that_is_not_known_is_named_with_what_to_write_instead() {
        let unknown = [
            (
                "redis+unix:///s?dbb=3",
                "`dbb` is not known here; known are `db`",
            ),
            ("redis://h?DB=3", "`DB` is not known here; known are `db`"),
            (
                "redis://h?ssl=true",
                "`ssl` is not known here: a `rediss://` url",
            ),
            (
                "redis://h?ssl_cert_reqs=none",
                "certificates are always checked",
            ),
            ("redis://h?prefix=x", "`key_prefix`"),
            ("redis://h?keyPrefix=x", "`key_prefix`"),
            (
                "redis://h?timeout=5",
                "`command_timeout` and `connect_timeout`",
            ),
            (
                "redis://h?socket_connect_timeout=5",
                "`command_timeout` and `connect_timeout`",
            ),
            (
                "redis://h?username=x",
                "`username` is not known here: it is written before the host",
            ),
            (
                "redis://h?password=hunter2",
                "it is written before the host",
            ),
            ("redis+unix:///s?username=x", "write `user` and `pass`"),
            (
                "redis://h?health_check_interval=5",
                "`health_check_interval` is not known",
            ),
            (
                "redis://h?sentinel_password=hunter2",
                "`sentinel_password` is not known",
            ),
            (
                "redis+cluster://h?read_from_replicas=true",
                "known are `db`, `protocol`",
            ),
            ("redis+sentinel://h/m?master_name=x", "follows the hosts"),
            ("redis://h?=hunter2", "a parameter in it is not known"),
            ("redis://h?%0Ahunter2%20x", "a parameter in it is not known"),
        ];
        all_are_refused(&unknown);
    }
}
