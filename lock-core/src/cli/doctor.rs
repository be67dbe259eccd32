//! `doctor`: whether a server is fit to keep locks.

use std::io::{self, Write};

use lock_core::{LockManager, redis};
use serde_json::{Value, json};

use crate::{
    Failed,
    output::{Colour, painted, print_json},
};

/// The scripts call `ZMSCORE` and `SET … PXAT`, which came with it.
const LEAST_VERSION: (u32, u32) = (6, 2);

struct Finding {
    what: &'static str,
    is_good: bool,
    /// What was found; if it is not good, with what to do.
    text: String,
}

pub(crate) async fn examine(url: &str, prefix: &str, json: bool) -> Result<u8, Failed> {
    let mut findings = Vec::new();
    let connected = LockManager::builder().key_prefix(prefix).connect(url).await;
    let locks = match connected {
        Ok(locks) => locks,
        Err(error) => {
            findings.push(bad("connection", Failed::from(error).reason));
            return report(&findings, json);
        }
    };
    findings.push(good("connection", "a lock can be taken and released"));
    findings.extend(server(url).await);
    match locks.check().await {
        Ok(health) => {
            let round_trip = format!("a request takes {:?}", health.round_trip);
            findings.push(good("latency", round_trip));
            if health.warnings.is_empty() {
                let fine = "nothing else stands in the way: rights, eviction, clock, grants";
                findings.push(good("settings", fine));
            }
            let warnings = health.warnings.into_iter();
            findings.extend(warnings.map(|warning| bad("settings", warning)));
        }
        Err(error) => findings.push(bad("settings", Failed::from(error).reason)),
    }
    report(&findings, json)
}

fn good(what: &'static str, text: impl Into<String>) -> Finding {
    Finding {
        what,
        is_good: true,
        text: text.into(),
    }
}

fn bad(what: &'static str, text: impl Into<String>) -> Finding {
    Finding {
        what,
        is_good: false,
        text: text.into(),
    }
}

/// What the server says of itself. Of several, each would say it of itself: only a single one is asked.
async fn server(url: &str) -> Vec<Finding> {
    let Ok(client) = redis::Client::open(url) else {
        return vec![good(
            "server",
            "not asked: this url names several, or is not one of the crate `redis`",
        )];
    };
    let info = async {
        let mut connection = client.get_multiplexed_async_connection().await?;
        redis::cmd("INFO")
            .query_async::<String>(&mut connection)
            .await
    };
    match info.await {
        Ok(info) => of_info(&info),
        Err(error) if error.kind() == redis::ErrorKind::Client => Vec::new(),
        Err(_) => vec![bad(
            "server",
            "its INFO cannot be read: grant this user `+info`, or look at the version and at persistence by hand",
        )],
    }
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
        // Tokens grow all the same, by the clock; the locks that are held are gone.
        good(
            "persistence",
            "the append-only file is off: a restart forgets the locks that are held",
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
    let is_fit = findings.iter().all(|finding| finding.is_good);
    if json {
        let shown = findings.iter().map(|finding| {
            json!({
                "what": finding.what,
                "ok": finding.is_good,
                "text": finding.text,
            })
        });
        print_json(&Value::Array(shown.collect()))?;
    } else {
        let mut stdout = io::stdout();
        for finding in findings {
            let mark = if finding.is_good {
                painted("ok  ", Colour::Green)
            } else {
                painted("FAIL", Colour::Red)
            };
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
            .filter(|finding| !finding.is_good)
            .map(|finding| finding.what)
            .collect();
        assert_eq!(bad, ["server", "role"]);
        let findings = of_info("redis_version:7.2.4\r\nvalkey_version:9.0.0\r\nrole:master\r\n");
        assert!(findings.iter().all(|finding| finding.is_good));
        assert_eq!(findings[0].text, "Valkey 9.0.0");
    }
}
