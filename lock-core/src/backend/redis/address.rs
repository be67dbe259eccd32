//! From a url to what is needed to connect, and a form of it that may be shown.

use std::path::PathBuf;

use percent_encoding::percent_decode_str;
use url::{Host, Url};

use crate::{
    backend::redis::security::{Security, Transport},
    error::LockError,
};

/// A server's address. What is shown of it has no user, password or query.
#[derive(Clone)]
pub(super) struct Address {
    place: Place,
    pub(super) transport: Transport,
    credentials: Option<Credentials>,
    database: u32,
    /// Whether the server may send messages on the connection of the commands (RESP3): unless the url asks for RESP2.
    pub(super) pushes: bool,
    shown: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

/// By which a server lets us in.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(crate) user: Option<String>,
    pub(crate) password: String,
}

impl Credentials {
    pub(crate) fn new(user: String, password: String) -> Self {
        let user = Some(user).filter(|user| !user.is_empty());
        Self { user, password }
    }
}

impl std::fmt::Debug for Credentials {
    /// Without the password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

const SCHEMES: &str = "`redis://`, `rediss://` (TLS), `valkey://`, `valkeys://` (TLS), `redis+unix://`, `redis+sentinel://`, \
                       `redis+cluster://` or `memory://`";

const DEFAULT_PORT: u16 = Address::DEFAULT_PORT;

impl Address {
    pub(super) const DEFAULT_PORT: u16 = 6379;

    pub(super) fn parse(url: &str, security: &Security) -> Result<Self, LockError> {
        Self::parse_with_path(url, security, |path| path).map(|(address, _)| address)
    }

    /// The same where the number of the database is only a part of the path; returns the url, too.
    pub(super) fn parse_with_path(
        url: &str,
        security: &Security,
        database: impl Fn(&str) -> &str,
    ) -> Result<(Self, Url), LockError> {
        let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
        let known = matches!(
            scheme,
            "redis" | "rediss" | "valkey" | "valkeys" | "redis+unix" | "valkey+unix" | "unix"
        );
        // An `@` behind the host is a password that was not encoded, cut at its first `/`, `?` or `#`.
        let parsed = Url::parse(url).ok().filter(|parsed| {
            let rest = [Some(parsed.path()), parsed.query(), parsed.fragment()];
            known && !rest.into_iter().flatten().any(|part| part.contains('@'))
        });
        let Some(parsed) = parsed else {
            return Err(LockError::invalid(malformed(url)));
        };
        let address = if scheme.ends_with("unix") {
            Self::of_a_socket(&parsed)?
        } else {
            let database = database(parsed.path().trim_matches('/'));
            let transport = security.transport(scheme, &show(&parsed))?;
            Self::of_a_host(&parsed, transport, database)?
        };
        Ok((address, parsed))
    }

    fn of_a_host(url: &Url, transport: Transport, number: &str) -> Result<Self, LockError> {
        let host = match url.host() {
            Some(Host::Domain(name)) => decode(name),
            Some(Host::Ipv4(address)) => address.to_string(),
            Some(Host::Ipv6(address)) => address.to_string(),
            None => String::new(),
        };
        if host.is_empty() {
            return Err(LockError::invalid(malformed(url.as_str())));
        }
        let user = Some(decode(url.username())).filter(|user| !user.is_empty());
        let password = url.password().map(decode);
        if user.is_some() && password.is_none() {
            return Err(refused(
                url,
                "it has a user without a password; write `redis://user:password@host`, or `redis://:password@host` where \
                 there is no user",
            ));
        }
        Ok(Self {
            place: Place::Tcp {
                host,
                port: url.port().unwrap_or(DEFAULT_PORT),
            },
            transport,
            credentials: password.map(|password| Credentials { user, password }),
            database: database(url, number)?,
            pushes: !asks_for_resp2(url),
            shown: show(url),
        })
    }

    fn of_a_socket(url: &Url) -> Result<Self, LockError> {
        if url.host_str().is_some_and(|host| !host.is_empty()) || url.path().len() < 2 {
            return Err(refused(
                url,
                "it needs the whole path of a socket, as in `redis+unix:///run/redis.sock?db=1`",
            ));
        }
        let query = |wanted: &str| {
            url.query_pairs()
                .find_map(|(name, value)| (name == wanted).then(|| value.into_owned()))
        };
        let password = query("pass").or_else(|| query("password"));
        Ok(Self {
            place: Place::Unix(decode(url.path()).into()),
            // It never leaves the machine.
            transport: Transport::Plain,
            credentials: password.map(|password| Credentials {
                user: query("user"),
                password,
            }),
            database: database(url, &query("db").unwrap_or_default())?,
            pushes: !asks_for_resp2(url),
            shown: show(url),
        })
    }

    /// The same way of talking to another server.
    pub(super) fn at(&self, host: &str, port: u16) -> Self {
        let scheme = self
            .shown
            .split_once("://")
            .map_or("", |(scheme, _)| scheme);
        let scheme = scheme.split_once('+').map_or(scheme, |(base, _)| base);
        let brackets = host.contains(':');
        let (open, close) = if brackets { ("[", "]") } else { ("", "") };
        Self {
            place: Place::Tcp {
                host: host.to_owned(),
                port,
            },
            shown: format!("{scheme}://{open}{host}{close}:{port}"),
            ..self.clone()
        }
    }

    /// The same, but shown differently.
    pub(super) fn shown_as(&self, shown: String) -> Self {
        Self {
            shown,
            ..self.clone()
        }
    }

    pub(super) fn set_credentials(&mut self, credentials: Option<Credentials>) {
        self.credentials = credentials;
    }

    pub(super) fn set_database(&mut self, database: u32) {
        self.database = database;
    }

    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    pub(super) fn credentials(&self) -> Option<&Credentials> {
        self.credentials.as_ref()
    }

    pub(super) fn database(&self) -> u32 {
        self.database
    }

    pub(super) fn shown(&self) -> &str {
        &self.shown
    }
}

impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown)
    }
}

fn decode(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

fn database(url: &Url, text: &str) -> Result<u32, LockError> {
    if text.is_empty() {
        return Ok(0);
    }
    text.parse()
        .map_err(|_| refused(url, "the database is no number, as in `redis://host/0`"))
}

fn asks_for_resp2(url: &Url) -> bool {
    url.query_pairs()
        .any(|(name, value)| name == "protocol" && value.ends_with('2'))
}

pub(super) fn refused(url: &Url, reason: &str) -> LockError {
    LockError::invalid(format!("the url `{}` cannot be used: {reason}", show(url)))
}

fn show(url: &Url) -> String {
    let (scheme, path) = (url.scheme(), url.path());
    match url.host_str() {
        Some(host) if !host.is_empty() => {
            format!(
                "{scheme}://{host}:{}{path}",
                url.port().unwrap_or(DEFAULT_PORT)
            )
        }
        _ => format!("{scheme}://{path}"),
    }
}

/// Nothing of a url that does not parse may be shown but its scheme: nobody knows where its password is.
fn malformed(url: &str) -> String {
    let scheme = url
        .split_once("://")
        .map(|(scheme, _)| scheme)
        .unwrap_or_default();
    let known = !scheme.is_empty()
        && scheme
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    let example = "write it as in `redis://user:password@host:6379/0`, with special characters in the password \
                   percent-encoded";
    match scheme {
        "memory" => "`memory://` stands alone, without a host or a path".to_owned(),
        "redis" | "rediss" | "valkey" | "valkeys" | "redis+unix" | "valkey+unix" | "unix" => {
            format!("the url `{scheme}://…` is malformed: {example}")
        }
        _ if known => format!("`{scheme}://` is no scheme that lock-core knows: use {SCHEMES}"),
        _ => format!("the url has no scheme: it begins with {SCHEMES}; {example}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use super::Address as Parsed;

    fn parse(url: &str) -> Result<Parsed, LockError> {
        Parsed::parse(url, &Security::default())
    }

    #[test]
    fn what_is_shown_of_a_url_has_no_secret() {
        let secrets = [
            (
                "redis://user:hunter2@db.internal:6380/3",
                "redis://db.internal:6380/3",
            ),
            ("redis://:hunter2@127.0.0.1", "redis://127.0.0.1:6379"),
            ("valkey://:hunter2@[::1]:1", "valkey://[::1]:1"),
            (
                "redis+unix:///run/r.sock?pass=hunter2&db=2",
                "redis+unix:///run/r.sock",
            ),
            ("redis://h/?protocol=resp3&x=hunter2", "redis://h:6379/"),
        ];
        for (url, shown) in secrets {
            let address = parse(url).expect(url);
            assert_eq!(address.shown(), shown);
            assert_eq!(format!("{address:?}"), shown);
        }
    }

    #[test]
    fn a_refused_url_says_why_without_its_secret() {
        let refused = [
            ("", "no scheme"),
            ("127.0.0.1:6379", "no scheme"),
            ("hunter2@host", "no scheme"),
            ("http://:hunter2@host", "`http://` is no scheme"),
            ("redis://:hunter2@ho st", "malformed"),
            ("redis://:hun/ter2?@host:port", "malformed"),
            ("redis://:hunter2@host:99999", "malformed"),
            ("redis://:hunter2@host/db", "database is no number"),
            ("redis://:hunter2@", "malformed"),
            ("redis://hunter2@host", "user without a password"),
            ("redis+unix://host/run/r.sock?pass=hunter2", "whole path"),
            ("redis+unix:///", "whole path"),
            ("redis://app:2024/hunter2@db", "malformed"),
            ("redis://h?unter2@db", "malformed"),
            ("redis://h#unter2@db", "malformed"),
            ("redis://s3cr/etter2@host", "malformed"),
            ("memory://x", "alone"),
        ];
        for (url, reason) in refused {
            let error = parse(url).map(drop).expect_err(url).to_string();
            assert!(error.contains(reason), "{url}: {error}");
            assert!(
                !error.contains("hunter2") && !error.contains("ter2"),
                "{url}: {error}"
            );
        }
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn a_url_that_asks_for_tls_is_told_which_feature_to_switch_on() {
        for url in ["rediss://:hunter2@host", "valkeys://:hunter2@host"] {
            let error = parse(url).map(drop).expect_err(url).to_string();
            assert!(error.contains("feature `tls`"), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
