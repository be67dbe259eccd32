//! The parts of a server's url.
//!
//! An error says what is wrong and where, and never quotes the text, which may be a part of a password. No part of a url is
//! ignored: two services that read one url differently would not exclude each other.

use percent_encoding::percent_decode_str;

use crate::{
    credentials::Credentials,
    error::LockError,
    store::redis::address::{
        parts::{decode, hosts, no_spaces, parameters},
        scheme::{DEFAULT_PORT, Kind, unknown_scheme, without_a_scheme},
    },
};

/// A url that is well-formed, and has only known parameters.
pub(crate) struct ServerUrl<'a> {
    scheme: &'a str,
    pub(crate) kind: Kind,
    user: String,
    password: String,
    /// The hosts as they were written.
    authority: &'a str,
    /// The hosts, decoded, with the ports that were given. Only the url of a socket has none.
    pub(crate) hosts: Vec<(String, Option<u16>)>,
    /// As it was written.
    path: &'a str,
    parameters: Vec<(String, String)>,
}

impl<'a> ServerUrl<'a> {
    pub(crate) fn parse(text: &'a str) -> Result<Self, LockError> {
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(LockError::invalid(without_a_scheme(text)));
        };
        let kind = Kind::of(scheme).ok_or_else(|| LockError::invalid(unknown_scheme(scheme)))?;
        let url = Self::read(scheme, kind, rest).map_err(|reason| {
            let example = kind.example();
            LockError::invalid(format!(
                "the url `{scheme}://…` is malformed: {reason}; {example}"
            ))
        })?;
        url.check()?;
        Ok(url)
    }

    /// Reads the text after the scheme.
    fn read(scheme: &'a str, kind: Kind, rest: &'a str) -> Result<Self, String> {
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, tail) = rest.split_at(end);
        // Checked first: text that is shown must not be a part of a password.
        if tail.contains('@') {
            return Err(
                "an `@` follows the host: in a user or password, `/`, `?`, `#` and `@` are written `%2F`, `%3F`, `%23` and \
                 `%40`"
                    .to_owned(),
            );
        }
        let (user, authority) = authority.rsplit_once('@').unwrap_or(("", authority));
        if user.contains('@') {
            return Err("an `@` in the user or password is written `%40`".to_owned());
        }
        let (tail, fragment) = tail.split_at(tail.find('#').unwrap_or(tail.len()));
        let (path, query) = tail.split_once('?').unwrap_or((tail, ""));
        no_spaces(user, "user or password")?;
        no_spaces(authority, "host")?;
        no_spaces(path, "path")?;
        no_spaces(query, "query")?;
        match fragment {
            "" => {}
            "#insecure" => {
                return Err(
                    "`#insecure` has no meaning here: certificates are always checked, and the builder's `tls` says which ones \
                     count"
                        .to_owned(),
                );
            }
            _ => return Err("a fragment (`#…`) has no meaning here: leave it out".to_owned()),
        }
        decode(path, "path")?;
        let (user, password) = user.split_once(':').unwrap_or((user, ""));
        Ok(Self {
            scheme,
            kind,
            user: decode(user, "user")?,
            password: decode(password, "password")?,
            authority,
            hosts: match kind {
                Kind::Socket => Vec::new(),
                _ => hosts(authority)?,
            },
            path,
            parameters: parameters(query)?,
        })
    }

    /// Refuses urls that are well-formed and have no meaning, or two meanings.
    fn check(&self) -> Result<(), LockError> {
        match self.kind {
            Kind::Socket if !self.user.is_empty() || !self.password.is_empty() => {
                return Err(self.refused(
                    "the user and password of a socket stand in the query, as in `redis+unix:///path?user=name&pass=word`",
                ));
            }
            Kind::Socket if !self.authority.is_empty() || self.path.len() < 2 => {
                return Err(self.refused(
                    "it needs the whole path of a socket, as in `redis+unix:///run/redis.sock?db=1`",
                ));
            }
            Kind::Server if self.hosts.len() > 1 => {
                return Err(self.refused(
                    "it has several hosts: a cluster has a `redis+cluster://` url, sentinels have a `redis+sentinel://` one, \
                     and independent servers have one url each, with commas between them",
                ));
            }
            _ => {}
        }
        let known = self.kind.parameters();
        for (index, (name, _)) in self.parameters.iter().enumerate() {
            if !known.contains(&name.as_str()) {
                return Err(self.unknown(name));
            }
            let before = &self.parameters[..index];
            let twins = |other: &str| other == name || (is_password(other) && is_password(name));
            if before.iter().any(|(other, _)| twins(other)) {
                return Err(self.refused(&format!(
                    "the parameter `{name}` is given twice: write it once"
                )));
            }
        }
        Ok(())
    }

    fn unknown(&self, name: &str) -> LockError {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        let shown = if name.len() <= 32 && !name.is_empty() && name.chars().all(is_plain) {
            format!("the parameter `{name}` is not known here")
        } else {
            "a parameter in it is not known here".to_owned()
        };
        let hint = self.kind.hint(name);
        let hint = hint.map_or_else(String::new, |hint| format!(": {hint}"));
        let known = self.kind.parameters().join("`, `");
        self.refused(&format!("{shown}{hint}; known are `{known}`"))
    }

    /// The scheme without the part after its `+`.
    pub(crate) fn base(&self) -> &'a str {
        self.scheme.split('+').next().unwrap_or(self.scheme)
    }

    /// The parts of the path.
    pub(crate) fn segments(&self) -> Vec<&'a str> {
        let path = self.path.strip_prefix('/').unwrap_or(self.path);
        let path = path.strip_suffix('/').unwrap_or(path);
        if path.is_empty() {
            Vec::new()
        } else {
            path.split('/').collect()
        }
    }

    /// The whole path of a socket, decoded.
    pub(crate) fn decoded_path(&self) -> String {
        percent_decode_str(self.path)
            .decode_utf8_lossy()
            .into_owned()
    }

    pub(crate) fn credentials(&self) -> Result<Option<Credentials>, LockError> {
        if self.kind == Kind::Socket {
            let password = self.parameter("pass").or(self.parameter("password"));
            self.both(self.parameter("user"), password)
        } else {
            self.both(Some(&self.user), Some(&self.password))
        }
    }

    /// Sentinels have users of their own.
    pub(crate) fn sentinel_credentials(&self) -> Result<Option<Credentials>, LockError> {
        let password = self.parameter("sentinel_password");
        self.both(self.parameter("sentinel_user"), password)
    }

    fn both(
        &self,
        user: Option<&str>,
        password: Option<&str>,
    ) -> Result<Option<Credentials>, LockError> {
        match (user.unwrap_or_default(), password.unwrap_or_default()) {
            ("", "") => Ok(None),
            (_, "") => Err(self.refused(
                "it has a user without a password; write `redis://user:password@host`, or `redis://:password@host` where \
                 there is no user",
            )),
            (user, password) => Ok(Some(Credentials::new(user, password))),
        }
    }

    /// The number of the database: the one in the path, or `db`.
    pub(crate) fn database(&self, in_path: Option<&str>) -> Result<u32, LockError> {
        let number = |text: &str| {
            let digits = text.bytes().all(|byte| byte.is_ascii_digit());
            let number = text.parse().ok().filter(|_| digits);
            number.ok_or_else(|| self.refused("the database is no number, as in `redis://host/0`"))
        };
        let in_path = in_path.map(number).transpose()?;
        let by_name = match self.parameter("db") {
            Some("") => {
                return Err(self.refused("`db` is empty: write a number, or leave it out"));
            }
            text => text.map(number).transpose()?,
        };
        match (in_path, by_name) {
            (Some(one), Some(other)) if one != other => Err(self.refused(
                "it names two databases, one in the path and one by `db`: write one of them",
            )),
            (one, other) => Ok(one.or(other).unwrap_or(0)),
        }
    }

    /// Whether connections use the third version of the protocol, and not the second.
    pub(crate) fn pushes(&self) -> Result<bool, LockError> {
        match self.parameter("protocol") {
            None | Some("3" | "resp3" | "RESP3") => Ok(true),
            Some("2" | "resp2" | "RESP2") => Ok(false),
            Some(_) => Err(self.refused("the parameter `protocol` is `2` or `3`")),
        }
    }

    fn parameter(&self, wanted: &str) -> Option<&str> {
        let mut parameters = self.parameters.iter();
        parameters.find_map(|(name, value)| (name == wanted).then_some(value.as_str()))
    }

    pub(crate) fn refused(&self, reason: &str) -> LockError {
        let shown = self.shown();
        LockError::invalid(format!("the url `{shown}` cannot be used: {reason}"))
    }

    /// The url without the user, the password and the query.
    pub(crate) fn shown(&self) -> String {
        let (scheme, path) = (self.scheme, self.path);
        match (&self.hosts[..], self.kind) {
            ([(host, port)], Kind::Server) => {
                let port = port.unwrap_or(DEFAULT_PORT);
                format!("{scheme}://{}:{port}{path}", in_brackets(host))
            }
            (_, Kind::Socket) => format!("{scheme}://{path}"),
            _ => format!("{scheme}://{}{path}", self.authority),
        }
    }
}

/// A host as it is written in a url.
pub(crate) fn in_brackets(host: &str) -> String {
    if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_owned()
    }
}

fn is_password(parameter: &str) -> bool {
    matches!(parameter, "pass" | "password")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text of the error for a url that must be refused, by any of the readers.
    fn reason(url: &str) -> String {
        let refused = ServerUrl::parse(url).and_then(|url| {
            url.credentials()?;
            url.pushes()?;
            let segments = url.segments();
            url.database(segments.first().copied())
        });
        refused.map(drop).expect_err(url).to_string()
    }

    #[test]
    fn a_malformed_url_says_where_without_its_secret() {
        let refused = [
            ("", "no scheme"),
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
            ("redis://:hunter2@host:", "the port of the host is empty"),
            (
                "redis://:hunter2@::1",
                "an IPv6 address is written between brackets",
            ),
            ("redis://:hunter2@fe80::1:6379/0", "between brackets"),
            (
                "redis://:hunter2@[::1",
                "the bracket of the host is not closed",
            ),
            ("redis://:hunter2@[hunter2]", "no IPv6 address"),
            ("redis://:hunter2@[::1]6379", "no port follows the bracket"),
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
            (
                "redis://h?DB=3",
                "`DB` is not known here: the database is `db`",
            ),
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
                "the builder's `connect_timeout`",
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
