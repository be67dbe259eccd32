//! `doctor`: checks whether a server is suitable for locks.

use std::{
    io::{self, Write},
    time::{Duration, Instant, UNIX_EPOCH},
};

use lock_core::{
    LockError, LockManager,
    inspect::{Health, ServerInfo, Topic, Warning},
    redis,
};
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

/// First asks the server through a separate client, and then tries a manager. Each finding is one line, and the last one is
/// the verdict.
pub(crate) async fn examine(url: &str, prefix: &str, json: bool) -> Result<u8, Failed> {
    let asked = ask(url).await;
    let mut findings = match &asked {
        Ok(asked) => of_info(&asked.info),
        Err(NoInfo::Refused) => vec![bad(
            "server",
            "its INFO cannot be read: grant this user `+info`, or check the version and persistence by hand",
        )],
        Err(NoInfo::Silent) => Vec::new(),
    };
    match try_manager(url, prefix).await {
        Ok(health) => {
            if let Err(NoInfo::Silent) = asked {
                findings.push(doubtful(
                    "server",
                    "persistence and replicas were not checked, because this url leads to several servers or to a proxy: \
                     examine each server by its own url",
                ));
            }
            findings.insert(0, good("connection", "the manager is connected"));
            findings.extend(health.servers.iter().flat_map(of_server));
            findings.extend(of_health(health, asked.ok().as_ref()));
        }
        // The manager refuses a replica as well, so this is not reported twice.
        Err(_) if findings.iter().any(|finding| finding.what == "role") => {}
        Err(error) => {
            // The server replies, but refuses something that a lock needs.
            let is_refused =
                !matches!(asked, Err(NoInfo::Silent)) && matches!(error, LockError::Invalid { .. });
            let reason = Failed::from(error).reason;
            let what = match is_refused {
                true if reason.contains("guide::operations") => "rights",
                true => "locks",
                false => "connection",
            };
            findings.insert(0, bad(what, reason));
        }
    }
    report(findings, json)
}

async fn try_manager(url: &str, prefix: &str) -> Result<Health, LockError> {
    let locks = LockManager::builder().key_prefix(prefix).connect(url);
    locks.await?.check().await
}

/// Returns the findings about how the manager talks to a server.
fn of_server(server: &ServerInfo) -> [Finding; 3] {
    let kind = server.kind.as_deref().unwrap_or("unknown kind");
    let version = server
        .version
        .as_deref()
        .map(|version| format!(" {version}"));
    let version = version.unwrap_or_default();
    let protocol = format!(
        "RESP{} with {} ({kind}{version})",
        server.protocol, server.address
    );
    let waiters = if server.notifies {
        good(
            "waiters",
            "a waiter is notified when the lock is granted to it",
        )
    } else {
        doubtful(
            "waiters",
            "waiters poll: notifications need RESP3, scripts, and a proxy that forwards SUBSCRIBE",
        )
    };
    let scripts = if server.scripts {
        good("scripts", "locks in all modes, and run once, are available")
    } else {
        doubtful(
            "scripts",
            "not available: locks are exclusive only, without run once",
        )
    };
    [good("protocol", protocol), waiters, scripts]
}

/// Returns the findings of the manager's own check: at least one line for each topic, unless a proxy hides it.
fn of_health(health: Health, asked: Option<&Asked>) -> Vec<Finding> {
    let is_hidden = |warning: &Warning| warning.topic == Topic::Proxy;
    let is_known = !health.warnings.iter().any(is_hidden);
    let memory = asked.and_then(|asked| {
        let field = |name| field(&asked.info, name);
        let (most, policy) = (field("maxmemory_human")?, field("maxmemory_policy")?);
        Some(format!(" (maxmemory {most}, {policy})"))
    });
    let memory = memory.unwrap_or_default();
    let apart = match asked.and_then(|asked| asked.clock_offset) {
        Some(offset) => format!("{} ms", offset.as_millis()),
        None => "less than 10 s".to_owned(),
    };
    let topics = [
        (
            Topic::Rights,
            "rights",
            "a lock was acquired, renewed and released".to_owned(),
            true,
        ),
        (
            Topic::Eviction,
            "eviction",
            format!("the server does not evict locks{memory}"),
            is_known,
        ),
        (
            Topic::Clock,
            "clock",
            format!("the clocks of the server and of this machine differ by {apart}"),
            is_known,
        ),
        (
            Topic::Latency,
            "latency",
            format!("a request took {:?}", health.round_trip),
            true,
        ),
    ];
    let mut findings = Vec::new();
    let mut warnings = health.warnings;
    for (topic, what, well, is_known) in topics {
        let about: Vec<_> = warnings
            .extract_if(.., |warning| warning.topic == topic)
            .collect();
        if about.is_empty() && is_known {
            findings.push(good(what, well));
        }
        findings.extend(about.into_iter().map(|warning| bad(what, warning.text)));
    }
    findings.extend(warnings.into_iter().map(|warning| match warning.topic {
        Topic::Proxy => doubtful("proxy", warning.text),
        _ => bad("votes", warning.text),
    }));
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

/// The facts that a single server reports about itself.
struct Asked {
    info: String,
    clock_offset: Option<Duration>,
}

/// The reason why a server's INFO is not available.
enum NoInfo {
    Refused,
    /// It cannot be reached, a proxy does not forward the question, or the url names several servers.
    Silent,
}

async fn ask(url: &str) -> Result<Asked, NoInfo> {
    let client = redis::Client::open(url).map_err(|_| NoInfo::Silent)?;
    let connecting = timeout(PATIENCE, client.get_multiplexed_async_connection());
    let Ok(Ok(mut connection)) = connecting.await else {
        return Err(NoInfo::Silent);
    };
    let info = redis::cmd("INFO");
    let info = match timeout(PATIENCE, info.query_async(&mut connection)).await {
        Ok(Ok(info)) => info,
        Ok(Err(error)) if error.code() == Some("NOPERM") => return Err(NoInfo::Refused),
        _ => return Err(NoInfo::Silent),
    };
    let (time, sent) = (redis::cmd("TIME"), Instant::now());
    let time = timeout(PATIENCE, time.query_async::<(u64, u64)>(&mut connection)).await;
    let half = sent.elapsed() / 2;
    let offset = |(seconds, micros)| {
        let theirs = Duration::from_secs(seconds) + Duration::from_micros(micros) + half;
        Some(theirs.abs_diff(UNIX_EPOCH.elapsed().ok()?))
    };
    Ok(Asked {
        info,
        clock_offset: time.ok().and_then(Result::ok).and_then(offset),
    })
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = info.lines();
    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

fn of_info(info: &str) -> Vec<Finding> {
    let field = |name| field(info, name);
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
                format!("Redis {version} is too old: {major}.{minor} is the oldest tested version"),
            )
        } else {
            good("server", format!("Redis {version}"))
        });
    }
    let is_on = |name| field(name).is_some_and(|value| value != "0");
    let persistence = if is_on("aof_enabled") {
        good("persistence", "the append-only file is on")
    } else {
        // Fencing tokens grow nevertheless, because they follow the clock.
        doubtful(
            "persistence",
            "the append-only file is off, so a restart forgets the locks that are held: set `appendonly yes`",
        )
    };
    findings.push(persistence);
    if field("role") == Some("slave") {
        findings.push(bad(
            "role",
            "this is a replica: use the url of its primary, or redis+sentinel:// with the sentinels",
        ));
    }
    if let Some(replicas) = field("connected_slaves").filter(|replicas| *replicas != "0") {
        findings.push(good(
            "replicas",
            format!("{replicas}: a fail-over may lose the newest locks, unless `min_replicas_acked` is set"),
        ));
    }
    findings
}

fn report(mut findings: Vec<Finding>, json: bool) -> Result<u8, Failed> {
    let has = |mark| findings.iter().any(|finding| finding.mark == mark);
    let is_fit = !has(Mark::Bad);
    let verdict = match (is_fit, has(Mark::Doubtful)) {
        (true, false) => good("verdict", "suitable for locks"),
        (true, true) => doubtful(
            "verdict",
            "suitable for locks, within the limits of each WARN",
        ),
        (false, _) => bad("verdict", "not suitable for locks until each FAIL is fixed"),
    };
    findings.push(verdict);
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
        for finding in &findings {
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
