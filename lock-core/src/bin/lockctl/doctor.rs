//! `doctor`: checks whether a server is fit for locks.

use std::{
    io::{self, Write},
    time::Duration,
};

use lock_core::{LockError, LockManager, inspect::Topic, redis};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{
    Failed,
    output::{Colour, painted, print_json},
};

/// The scripts call `SET … PXAT`, which Redis 6.2 introduced.
const LEAST_VERSION: (u32, u32) = (6, 2);

/// The time-out of each request to the server itself.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    Good,
    /// Locks work, but a restart may lose them, or waiters poll.
    Doubtful,
    Bad,
}

impl Mark {
    const fn label(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Doubtful => "WARN",
            Self::Bad => "FAIL",
        }
    }

    const fn colour(self) -> Colour {
        match self {
            Self::Good => Colour::Green,
            Self::Doubtful => Colour::Yellow,
            Self::Bad => Colour::Red,
        }
    }
}

struct Finding {
    what: &'static str,
    mark: Mark,
    /// The finding, and the remedy if the mark is not `Good`.
    text: String,
}

pub(crate) async fn examine(url: &str, prefix: &str, json: bool) -> Result<u8, Failed> {
    let mut findings = server(url).await;
    let is_reached = !findings.is_empty();
    if findings.is_empty() {
        findings.push(doubtful(
            "server",
            "version, protocol and persistence were not asked: this url names several servers, or none that answers. Examine each by \
             its own url",
        ));
    }
    match LockManager::builder().key_prefix(prefix).connect(url).await {
        Ok(locks) => {
            findings.insert(0, good("connection", "the manager is connected"));
            findings.extend(health(&locks).await);
        }
        Err(error) => {
            // The server replies, and refuses what a lock needs.
            let is_refused = is_reached && matches!(error, LockError::Invalid { .. });
            let what = if is_refused { "rights" } else { "connection" };
            findings.insert(0, bad(what, Failed::from(error).reason));
        }
    }
    report(&findings, json)
}

/// The findings of the manager's own check: at least one line for each topic.
async fn health(locks: &LockManager) -> Vec<Finding> {
    let health = match locks.check().await {
        Ok(health) => health,
        Err(error @ LockError::Invalid { .. }) => {
            return vec![bad("rights", Failed::from(error).reason)];
        }
        Err(error) => return vec![bad("connection", Failed::from(error).reason)],
    };
    let round_trip = format!("a request takes {:?}", health.round_trip);
    let topics = [
        (
            Topic::Rights,
            "rights",
            "a lock is taken, renewed and released".to_owned(),
        ),
        (
            Topic::Eviction,
            "eviction",
            "the server evicts no locks".to_owned(),
        ),
        (
            Topic::Clock,
            "clock",
            "the clocks of the server and of this machine agree".to_owned(),
        ),
        (Topic::Latency, "latency", round_trip),
    ];
    let mut findings = Vec::new();
    let mut warnings = health.warnings;
    for (topic, what, well) in topics {
        let about: Vec<_> = warnings
            .extract_if(.., |warning| warning.topic == topic)
            .collect();
        if about.is_empty() {
            findings.push(good(what, well));
        }
        findings.extend(about.into_iter().map(|warning| bad(what, warning.text)));
    }
    findings.extend(
        warnings
            .into_iter()
            .map(|warning| bad("votes", warning.text)),
    );
    findings
}

fn good(what: &'static str, text: impl Into<String>) -> Finding {
    let (mark, text) = (Mark::Good, text.into());
    Finding { what, mark, text }
}

fn doubtful(what: &'static str, text: impl Into<String>) -> Finding {
    let (mark, text) = (Mark::Doubtful, text.into());
    Finding { what, mark, text }
}

fn bad(what: &'static str, text: impl Into<String>) -> Finding {
    let (mark, text) = (Mark::Bad, text.into());
    Finding { what, mark, text }
}

/// The findings about a single server. None if it cannot be reached, or if the url names several servers.
async fn server(url: &str) -> Vec<Finding> {
    let Ok(client) = redis::Client::open(url) else {
        return Vec::new();
    };
    let connecting = timeout(PATIENCE, client.get_multiplexed_async_connection());
    let Ok(Ok(mut connection)) = connecting.await else {
        return Vec::new();
    };
    let info = redis::cmd("INFO");
    let info = timeout(PATIENCE, info.query_async::<String>(&mut connection)).await;
    let mut findings = match info {
        Ok(Ok(info)) => of_info(&info),
        _ => vec![bad(
            "server",
            "its INFO cannot be read: grant this user `+info`, or look at the version and at persistence by hand",
        )],
    };
    let mut hello = redis::cmd("HELLO");
    let hello = hello.arg(3).query_async::<redis::Value>(&mut connection);
    findings.push(match timeout(PATIENCE, hello).await {
        Ok(Ok(_)) => good("protocol", "RESP3: grants come by messages"),
        _ => doubtful(
            "protocol",
            "RESP2 only, so waiters poll: use Redis 6 or later, and a proxy that passes RESP3 on",
        ),
    });
    findings
}

fn of_info(info: &str) -> Vec<Finding> {
    let field = |name: &str| {
        let mut lines = info.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
    };
    let mut findings = Vec::new();
    if let Some(version) = field("valkey_version") {
        findings.push(good("server", format!("Valkey {version}")));
    } else if let Some(version) = field("redis_version") {
        let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
        let known = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        let (major, minor) = LEAST_VERSION;
        findings.push(if known < LEAST_VERSION {
            bad(
                "server",
                format!("Redis {version} is too old: {major}.{minor} is the oldest that is tested"),
            )
        } else {
            good("server", format!("Redis {version}"))
        });
    }
    let is_on = |name| field(name).is_some_and(|value| value != "0");
    let persistence = if is_on("aof_enabled") {
        good("persistence", "the append-only file is on")
    } else {
        // Fencing tokens grow all the same, by the clock.
        doubtful(
            "persistence",
            "the append-only file is off, so a restart forgets the locks that are held: set `appendonly yes`",
        )
    };
    findings.push(persistence);
    if field("role").is_some_and(|role| role != "master") {
        findings.push(bad(
            "role",
            "this is a replica: use the url of its primary, or redis+sentinel:// with the sentinels",
        ));
    }
    findings
}

fn report(findings: &[Finding], json: bool) -> Result<u8, Failed> {
    let is_fit = findings.iter().all(|finding| finding.mark != Mark::Bad);
    if json {
        let shown = findings.iter().map(|finding| {
            json!({
                "what": finding.what,
                "ok": finding.mark != Mark::Bad,
                "mark": finding.mark.label(),
                "text": finding.text,
            })
        });
        print_json(&Value::Array(shown.collect()))?;
    } else {
        let mut stdout = io::stdout();
        for finding in findings {
            let mark = painted(
                &format!("{:4}", finding.mark.label()),
                finding.mark.colour(),
            );
            writeln!(stdout, "{mark}  {:<11}  {}", finding.what, finding.text)?;
        }
    }
    Ok(u8::from(!is_fit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_server_and_a_replica_are_found() {
        let findings = of_info("redis_version:5.0.7\r\nrole:slave\r\naof_enabled:1\r\n");
        let bad: Vec<_> = findings
            .iter()
            .filter(|finding| finding.mark == Mark::Bad)
            .map(|finding| finding.what)
            .collect();
        assert_eq!(bad, ["server", "role"]);
        let findings = of_info("redis_version:7.2.4\r\nvalkey_version:9.0.0\r\nrole:master\r\n");
        assert!(findings.iter().all(|finding| finding.mark != Mark::Bad));
        assert_eq!(findings[0].text, "Valkey 9.0.0");
    }
}
