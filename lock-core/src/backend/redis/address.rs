//! From a url to what is needed to connect, and a form of it that may be shown.

use std::time::Duration;

use redis::{
    ConnectionInfo, IntoConnectionInfo, ProtocolVersion,
    io::tcp::{TcpSettings, socket2::TcpKeepalive},
};

use crate::error::LockError;

/// A server's address. What is shown of it has no user, password or query.
#[derive(Clone)]
pub(super) struct Address {
    info: ConnectionInfo,
    /// Whether the server may send messages on the connection of the commands (RESP3): unless the url asks for RESP2.
    pub(super) pushes: bool,
    shown: String,
}

const SCHEMES: &str = "`redis://`, `valkey://`, `redis+unix://` or `memory://`";

impl Address {
    pub(super) fn parse(url: &str, command_timeout: Duration) -> Result<Self, LockError> {
        // An `@` behind the host is a password that was not encoded, cut at its first `/`, `?` or `#`.
        let parsed = redis::parse_redis_url(url).filter(|parsed| {
            let rest = [Some(parsed.path()), parsed.query(), parsed.fragment()];
            !rest.into_iter().flatten().any(|part| part.contains('@'))
        });
        let Some(parsed) = parsed else {
            return Err(LockError::invalid(malformed(url)));
        };
        let shown = match parsed.host_str() {
            Some(host) if !host.is_empty() => {
                let port = parsed.port().unwrap_or(6379);
                format!("{}://{host}:{port}{}", parsed.scheme(), parsed.path())
            }
            _ => format!("{}://{}", parsed.scheme(), parsed.path()),
        };
        if matches!(parsed.scheme(), "rediss" | "valkeys") {
            return Err(LockError::invalid(format!(
                "`{shown}` asks for TLS, which this build of lock-core does not speak yet: use a `redis://` url, through a \
                 TLS tunnel if need be"
            )));
        }
        let asks_for_resp2 = parsed
            .query_pairs()
            .any(|(name, value)| name == "protocol" && value.ends_with('2'));
        // The client's message says what is wrong before the first dash, and after it perhaps with which text.
        let info = parsed.into_connection_info().map_err(|error| {
            let text = error.to_string();
            let reason = text.split(" - ").next().unwrap_or_default();
            LockError::invalid(format!("the url `{shown}` cannot be used: {reason}"))
        })?;
        Ok(Self {
            info: info.set_tcp_settings(tcp_settings(command_timeout)),
            pushes: !asks_for_resp2,
            shown,
        })
    }

    /// What the client library connects by.
    pub(super) fn info(&self, protocol: ProtocolVersion) -> ConnectionInfo {
        let settings = self.info.redis_settings().clone().set_protocol(protocol);
        self.info.clone().set_redis_settings(settings)
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

/// No Nagle delay, since each command is one small write. A peer that is gone is noticed by the kernel too: while idle
/// by keepalive, with bytes on their way by the user time-out.
fn tcp_settings(command_timeout: Duration) -> TcpSettings {
    let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(15));
    let settings = TcpSettings::default()
        .set_nodelay(true)
        .set_keepalive(keepalive);
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    let settings = settings.set_user_timeout(command_timeout * 2);
    #[cfg(not(any(target_os = "android", target_os = "fuchsia", target_os = "linux")))]
    let _unused = command_timeout;
    settings
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

    fn parse(url: &str) -> Result<Address, LockError> {
        Address::parse(url, Duration::from_secs(1))
    }

    #[test]
    fn what_is_shown_of_a_url_has_no_secret() {
        let secrets = [
            (
                "redis://user:hunter2@db.internal:6380/3",
                "redis://db.internal:6380/3",
            ),
            ("redis://:hunter2@127.0.0.1", "redis://127.0.0.1:6379"),
            ("valkey://hunter2@[::1]:1", "valkey://[::1]:1"),
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
            ("redis://:hunter2@host/db", "Invalid database number"),
            ("redis://:hunter2@", "malformed"),
            ("redis://app:2024/hunter2@db", "malformed"),
            ("redis://h?unter2@db", "malformed"),
            ("redis://h#unter2@db", "malformed"),
            ("redis://s3cr/etter2@host", "malformed"),
            ("memory://x", "alone"),
            ("rediss://:hunter2@host", "TLS"),
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
}
