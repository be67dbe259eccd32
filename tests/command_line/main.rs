//! The program `lockctl` against servers.

use std::{
    collections::HashSet,
    io,
    process::{Command, ExitStatus, Output, Stdio},
};

use lock_core::{LockManager, LockOptions, OnceOptions};
use lock_tests::{
    AcquireFree as _, HANG, Kind, Process, Quirk, RedisServer, ReleaseHeld as _, SECOND, StandIn,
    ThirdParty, connect, error_texts::compare, eventually, options,
};
use rustix::process::{Pid, test_kill_process};
use serde_json::Value;

mod interrupted;
mod killed;
mod watching;

const LOCKCTL: &str = env!("CARGO_BIN_EXE_lockctl-tried");

fn command(server: &RedisServer, words: &[&str]) -> Command {
    let mut command = Command::new(LOCKCTL);
    command
        .args(words)
        .env("LOCK_URL", server.url())
        .stdin(Stdio::null());
    command
}

fn lockctl(server: &RedisServer, words: &[&str]) -> Output {
    command(server, words).output().expect("it starts")
}

fn code(output: &Output) -> i32 {
    output
        .status
        .code()
        .unwrap_or_else(|| panic!("no code: {output:?}"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// Starts a command that sleeps while `lockctl` holds the lock. Returns its process id, too.
fn sleeper(server: &RedisServer, more: &[&str]) -> (Process, Pid) {
    let mut words = vec!["--url", "", "run", "k"];
    words.extend(more);
    words.extend(["--", "sh", "-c", "echo $$; exec sleep 1000"]);
    let url = server.url();
    words[1] = &url;
    let mut process = Process::spawn(LOCKCTL, &words, &[]);
    let pid = process.line().parse().expect("a process id");
    (process, Pid::from_raw(pid).expect("a process"))
}

async fn until_gone(pid: Pid) {
    eventually!(HANG, "the command has ended" => test_kill_process(pid).is_err());
}

async fn ended(process: &mut Process) -> ExitStatus {
    eventually!(HANG, "lockctl ends" => process.ended().is_some());
    process.ended().expect("it has ended")
}

/// Waits until this many processes wait for the lock.
async fn until_awaited_by(count: usize, locks: &LockManager, key: &str) {
    eventually(HANG, "they wait", async || {
        let info = locks.inspect(key).await.expect("a reply");
        info.is_some_and(|info| info.waiters == count)
    })
    .await;
}

async fn until_free(locks: &LockManager) {
    eventually!(HANG, "the lock is free" => locks.inspect("k").await.expect("a reply").is_none());
}

#[test]
fn a_command_runs_under_the_lock_and_its_exit_code_is_returned() {
    let server = RedisServer::start();
    let shown = "echo $LOCK_KEY $LOCK_FENCING_TOKEN $LOCK_PERMIT; exit 3";
    let ran = lockctl(&server, &["run", "k", "--", "sh", "-c", shown]);
    assert_eq!(code(&ran), 3);
    let printed = text(&ran.stdout);
    let words: Vec<&str> = printed.split_whitespace().collect();
    let [key, token] = words[..] else {
        panic!("{printed}")
    };
    assert_eq!(key, "k");
    assert!(token.parse::<u64>().is_ok_and(|token| token > 0), "{token}");
    assert_eq!(server.get("lock:k"), None);
    let ran = lockctl(
        &server,
        &[
            "run",
            "p",
            "--permits",
            "3",
            "--",
            "sh",
            "-c",
            "exit $LOCK_PERMIT",
        ],
    );
    assert_eq!(code(&ran), 0);
    let killed = lockctl(&server, &["run", "k", "--", "sh", "-c", "kill -9 $$"]);
    assert_eq!(code(&killed), 128 + 9);
    assert_eq!(server.get("lock:k"), None);
}

#[tokio::test]
async fn a_busy_lock_is_exit_code_75_unless_it_is_shared_or_waited_for() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    let guard = locks.acquire_free("k", options()).await;
    let busy = lockctl(&server, &["run", "k", "--", "echo", "ran"]);
    assert_eq!(code(&busy), 75);
    assert!(busy.stdout.is_empty());
    assert!(text(&busy.stderr).contains("busy"), "{busy:?}");
    let words = ["run", "k", "--wait", "forever", "--", "echo", "ran"];
    let waiting = command(&server, &words).stdout(Stdio::piped()).spawn();
    let waiting = waiting.expect("it starts");
    until_awaited_by(1, &locks, "k").await;
    guard.release_held().await;
    let ran = waiting.wait_with_output().expect("it ends");
    assert_eq!((code(&ran), text(&ran.stdout).trim()), (0, "ran"));
    let shared = locks.acquire_free("s", options().shared()).await;
    let second = lockctl(&server, &["run", "s", "--shared", "--", "true"]);
    assert_eq!(code(&second), 0);
    shared.release_held().await;
}

/// The texts of failures, like those in `in_process/texts.rs`. Errors of the parser have more lines than the first.
#[tokio::test]
async fn each_failure_has_an_exit_code_and_a_text() {
    let server = RedisServer::start();
    let locks = LockManager::builder().label("web-1");
    let locks = locks.connect(&server.url()).await.expect("up");
    let _held = locks.acquire_free("held", options()).await;
    let rows = [
        (
            "run k -- no-such-command",
            127,
            "lockctl: cannot run no-such-command: No such file or directory (os error 2)",
        ),
        (
            "run k -- /",
            126,
            "lockctl: cannot run /: Permission denied (os error 13)",
        ),
        (
            "run k",
            64,
            "error: the following required arguments were not provided:",
        ),
        (
            "run k --ttl 1ms -- true",
            64,
            "lockctl: the lock `k` cannot be used: ttl is 1ms, but must be at least 100ms: below that, one slow round trip \
             ends the lease",
        ),
        (
            "run k --ttl 3s --kill-after 2s -- true",
            64,
            "lockctl: --kill-after 2s is more than a third of the ttl of 3s: the command could not be ended before its \
             lease does",
        ),
        (
            "run k --shared --permits 2 -- true",
            64,
            "error: the argument '--shared' cannot be used with '--permits <N>'",
        ),
        (
            "run held -- true",
            75,
            "lockctl: the lock `held` is busy: the process web-1 holds it",
        ),
        ("watch", 64, "lockctl: `watch` needs a terminal: use `ls`"),
        (
            "break",
            64,
            "error: the following required arguments were not provided:",
        ),
        (
            "break held",
            64,
            "lockctl: `held` is held by web-1: pass --yes to release it without confirmation",
        ),
        (
            "break held --yes --holder web-2",
            64,
            "lockctl: `held` is held by web-1, not by web-2: nothing was done",
        ),
        (
            "--url redis://127.0.0.1:1 ls",
            69,
            "lockctl: the lock backend is unavailable: cannot connect to redis://127.0.0.1:1: Connection refused (os error \
             111)",
        ),
        (
            "--url redis://name:secret@127.0.0.1:1 ls",
            69,
            "lockctl: the lock backend is unavailable: cannot connect to redis://127.0.0.1:1: Connection refused (os error \
             111)",
        ),
        (
            "--url nonsense ls",
            64,
            "lockctl: the url has no scheme: it must begin with `redis://`, `rediss://` (TLS), `valkey://`, `valkeys://` \
             (TLS), `redis+unix://`, `redis+sentinel://`, `redis+cluster://` or `memory://`",
        ),
    ];
    let said = rows.map(|(words, expected, wanted)| {
        let output = lockctl(&server, &words.split(' ').collect::<Vec<_>>());
        assert_eq!(code(&output), expected, "{words}: {output:?}");
        let said = text(&output.stderr);
        let first = said.lines().next().unwrap_or_default();
        (words, first.to_owned(), wanted)
    });
    compare(&said);
    assert_eq!(server.get("lock:k"), None, "a lock is left");
    assert_eq!(code(&lockctl(&server, &["--help"])), 0);
}

#[tokio::test]
async fn a_lock_that_is_taken_away_ends_the_command() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    let (mut process, pid) = sleeper(&server, &["--ttl", "1s"]);
    locks.force_release("k").await.expect("a reply");
    until_gone(pid).await;
    assert_eq!(ended(&mut process).await.code(), Some(70));
}

/// The command ignores SIGTERM, so it is killed before its lease ends.
#[tokio::test]
async fn a_command_that_ignores_signals_is_killed_when_the_server_is_down() {
    let server = RedisServer::start();
    let url = server.url();
    let words = [
        "--url",
        &url,
        "run",
        "k",
        "--ttl",
        "3s",
        "--",
        "sh",
        "-c",
        "trap '' TERM; echo $$; while :; do sleep 1; done",
    ];
    let mut process = Process::spawn(LOCKCTL, &words, &[]);
    let pid = process.line().parse().ok().and_then(Pid::from_raw);
    server.kill9();
    until_gone(pid.expect("a process id")).await;
    assert_eq!(ended(&mut process).await.code(), Some(70));
}

#[tokio::test]
async fn a_signal_is_forwarded_and_the_lock_is_released() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    let (mut process, pid) = sleeper(&server, &[]);
    process.interrupt();
    until_gone(pid).await;
    until_free(&locks).await;
    assert_eq!(ended(&mut process).await.code(), Some(128 + 2));
}

/// The keeper of the command is in the same process group, and gets the same signals.
#[tokio::test]
async fn a_command_that_ignores_signals_ends_with_lockctl() {
    let server = RedisServer::start();
    let url = server.url();
    let stays = "trap 'echo got it' INT; trap '' TERM; echo $$; while :; do sleep 0.1; done";
    let words = [
        "--url", &url, "run", "k", "--ttl", "3s", "--", "sh", "-c", stays,
    ];
    let mut process = Process::spawn(LOCKCTL, &words, &[]);
    let pid = process.line().parse().ok().and_then(Pid::from_raw);
    process.interrupt();
    assert_eq!(process.line(), "got it");
    process.kill9();
    until_gone(pid.expect("a process id")).await;
}

/// `nohup` and the `&` of a shell ignore signals for the programs that they start.
#[test]
fn a_signal_that_is_ignored_stays_ignored() {
    let server = RedisServer::start();
    let script = "trap '' HUP; exec \"$0\" run k -- grep SigIgn /proc/self/status";
    let ran = Command::new("sh")
        .args(["-c", script, LOCKCTL])
        .env("LOCK_URL", server.url())
        .stdin(Stdio::null())
        .output()
        .expect("it starts");
    let printed = text(&ran.stdout);
    let mask = printed.trim().trim_start_matches("SigIgn:").trim();
    let mask = u64::from_str_radix(mask, 16).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    assert_eq!(mask & 1, 1, "SIGHUP is number 1: {printed}");
    // Rust's runtime ignores this one.
    assert_eq!(mask >> 12 & 1, 0, "SIGPIPE is number 13: {printed}");
}

#[test]
fn a_reader_that_closes_the_pipe_is_not_an_error() {
    let server = RedisServer::start();
    server.set_all((0..100).map(|key| format!("lock:k{key:05}")));
    for more in [&["ls"][..], &["ls", "--json"], &["completions", "bash"]] {
        let (reader, writer) = io::pipe().expect("a pipe");
        drop(reader);
        let mut listing = command(&server, more);
        let ended = listing.stdout(writer).output().expect("it starts");
        assert_eq!(
            (code(&ended), text(&ended.stderr)),
            (128 + 13, String::new())
        );
    }
}

#[tokio::test]
async fn a_run_is_shown_with_its_label() {
    let server = RedisServer::start();
    let (holder, pid) = sleeper(&server, &["--ttl", "3s", "--label", "10.0.3.7:8080"]);
    let words = [
        "run", "k", "--label", "standby", "--wait", "forever", "--", "true",
    ];
    let mut waiting = command(&server, &words).spawn().expect("it starts");
    until_awaited_by(1, &connect(&server.url()).await, "k").await;
    let shown = text(&lockctl(&server, &["show", "k"]).stdout);
    let lines: Vec<Vec<&str>> = shown
        .lines()
        .map(|line| line.split('\t').collect())
        .collect();
    assert_eq!(
        (lines[0][2], &lines[1][..]),
        ("10.0.3.7:8080", &["waiter", "exclusive", "standby"][..])
    );
    let listed = text(&lockctl(&server, &["ls"]).stdout);
    assert!(listed.contains("\t10.0.3.7:8080\t"), "{listed}");
    let mut screen = watching::at_terminal(&server, "rows 24 cols 80", "watch --interval 100ms");
    let lines = watching::screen(&mut screen);
    assert!(
        lines.iter().any(|line| line.contains(" 10.0.3.7:8080 ")),
        "{lines:#?}"
    );
    let busy = lockctl(&server, &["run", "k", "--", "true"]);
    assert!(
        text(&busy.stderr).contains("the process 10.0.3.7:8080 holds it"),
        "{busy:?}"
    );
    drop(holder);
    until_gone(pid).await;
    assert!(waiting.wait().expect("it ends").success());
}

#[tokio::test]
async fn ten_thousand_locks_are_shown() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    server.set_all((0..10_000).map(|key| format!("lock:k{key:05}")));
    let guard = locks
        .acquire_free("own", LockOptions::new(SECOND * 60))
        .await;
    let listed = lockctl(&server, &["ls"]);
    assert_eq!(code(&listed), 0);
    let lines = text(&listed.stdout);
    assert_eq!(lines.lines().count(), 10_001);
    let first: Vec<&str> = lines.lines().next().expect("a line").split('\t').collect();
    assert_eq!(
        first,
        ["k00000", "exclusive", "another client", "1", "forever", "0"]
    );
    let some = json(&lockctl(&server, &["ls", "k0001", "--json"]));
    assert_eq!(some.as_array().expect("a list").len(), 10);
    let own = json(&lockctl(&server, &["show", "own", "--json"]));
    assert_eq!(
        (own["mode"].as_str(), own["holders"].as_u64()),
        (Some("exclusive"), Some(1))
    );
    let left = own["remaining_ms"].as_u64().expect("a number");
    assert!((1..=60_000).contains(&left), "{left}");
    let second = locks
        .acquire_free("two-permits", options().permits(3))
        .await;
    let third = locks
        .acquire_free("two-permits", options().permits(3))
        .await;
    let words = [
        "run",
        "two-permits",
        "--permits",
        "2",
        "--wait",
        "forever",
        "--",
        "true",
    ];
    let mut waiting = command(&server, &words).spawn().expect("it starts");
    until_awaited_by(1, &locks, "two-permits").await;
    let shown = lockctl(&server, &["show", "two-permits"]);
    let shown = text(&shown.stdout);
    let lines: Vec<Vec<&str>> = shown
        .lines()
        .map(|line| line.split('\t').collect())
        .collect();
    let [first, holder, other, waiter] = &lines[..] else {
        panic!("{shown}")
    };
    let of = |pid: u32| format!("/{pid}");
    assert_eq!(
        (first[0], first[1], first[3]),
        ("two-permits", "permits", "2")
    );
    for (line, number) in [(holder, "permit 0"), (other, "permit 1")] {
        assert_eq!(line[..2], ["holder", number]);
        assert!(line[2].ends_with(&of(std::process::id())), "{shown}");
        assert!(line[3].ends_with('s'), "{shown}");
    }
    assert_eq!(waiter[..2], ["waiter", "permits"]);
    assert!(waiter[2].ends_with(&of(waiting.id())), "{shown}");
    let full = json(&lockctl(&server, &["show", "two-permits", "--json"]));
    assert_eq!(full["queue"][0]["process"], waiter[2]);
    assert_eq!(full["other_holders"][0], holder[2]);
    let leases = full["leases"].as_array().expect("a list");
    let numbers = leases.iter().map(|lease| lease["permit"].as_u64());
    assert_eq!(
        numbers.collect::<HashSet<_>>(),
        HashSet::from([Some(0), Some(1)])
    );
    let left = leases.iter().map(|lease| lease["remaining_ms"].as_u64());
    assert!(left.into_iter().all(|left| left > Some(0)), "{full}");
    second.release_held().await;
    third.release_held().await;
    assert!(waiting.wait().expect("it ends").success());
    let none = lockctl(&server, &["show", "none"]);
    assert_eq!(text(&none.stdout), "free\n");
    guard.release_held().await;
}

#[tokio::test]
async fn break_requires_yes_and_the_right_holder() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    let guard = locks.acquire_free("k", options()).await;
    let refused = lockctl(&server, &["break", "k"]);
    assert_eq!(code(&refused), 64);
    assert!(text(&refused.stderr).contains("--yes"), "{refused:?}");
    let other = lockctl(&server, &["break", "k", "--yes", "--holder", "web-3/4711"]);
    assert_eq!(code(&other), 64);
    guard.lease().verify().await.expect("nothing was broken");
    let broken = lockctl(&server, &["break", "k", "--yes", "--json"]);
    assert_eq!(code(&broken), 0);
    assert_eq!(json(&broken)["broken"], true);
    assert!(guard.lease().verify().await.is_err());
    let free = json(&lockctl(&server, &["break", "k", "--yes", "--json"]));
    assert_eq!(free["broken"], false);
}

#[tokio::test]
async fn a_result_is_shown_without_its_value_and_can_be_forgotten() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    let run = async |value: &str| {
        let options = OnceOptions::keep(SECOND * 90);
        let body = async |_| Ok::<_, String>(value.to_owned());
        locks.run_once("k", options, body).await.expect("free")
    };
    assert_eq!(run("first").await, Ok("first".to_owned()));
    let shown = lockctl(&server, &["show", "k"]);
    assert!(
        text(&shown.stdout).starts_with("free\nresult\t1m2"),
        "{shown:?}"
    );
    let shown = lockctl(&server, &["show", "k", "--json"]);
    assert!(!text(&shown.stdout).contains("first"), "{shown:?}");
    let shown = json(&shown);
    assert_eq!(shown["holder"], Value::Null);
    let kept = shown["result_kept_ms"].as_u64().expect("a number");
    assert!((80_000..=90_000).contains(&kept), "{kept}");
    let guard = locks.acquire_free("k", options()).await;
    let held = json(&lockctl(&server, &["show", "k", "--json"]));
    assert_eq!(held["holders"], 1);
    assert!(held["result_kept_ms"].as_u64() > Some(0), "{held}");
    guard.release_held().await;
    let listed = lockctl(&server, &["ls"]);
    assert_eq!(text(&listed.stdout), "");
    let free = json(&lockctl(&server, &["break", "k", "--yes", "--json"]));
    assert_eq!(free["broken"], false);
    let gone = lockctl(&server, &["forget", "k"]);
    assert_eq!(
        (code(&gone), text(&gone.stdout)),
        (0, "forgotten\n".to_owned())
    );
    let again = json(&lockctl(&server, &["forget", "k", "--json"]));
    assert_eq!(again["forgotten"], false);
    assert_eq!(run("second").await, Ok("second".to_owned()));
}

#[test]
fn the_doctor_reports_each_problem() {
    let server = RedisServer::start();
    let well = lockctl(&server, &["doctor", "--json"]);
    assert_eq!(code(&well), 0, "{well:?}");
    let findings = json(&well);
    let findings = findings.as_array().expect("a list");
    assert!(findings.iter().all(|finding| finding["ok"] == true));
    let named: Vec<_> = findings
        .iter()
        .map(|found| found["what"].as_str())
        .collect();
    let expected = [
        "connection",
        "server",
        "persistence",
        "protocol",
        "waiters",
        "scripts",
        "rights",
        "eviction",
        "clock",
        "latency",
        "verdict",
    ];
    assert_eq!(named, expected.map(Some));
    let doubtful = findings.iter().filter(|found| found["mark"] == "WARN");
    let doubtful: Vec<_> = doubtful.map(|found| found["what"].as_str()).collect();
    assert_eq!(
        doubtful,
        ["persistence", "verdict"].map(Some),
        "{findings:?}"
    );
    server.cli(&["CONFIG", "SET", "maxmemory", "100mb"]);
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let ill = lockctl(&server, &["doctor"]);
    assert_eq!(code(&ill), 1);
    let said = text(&ill.stdout);
    assert!(said.contains("FAIL"), "{said}");
    assert!(said.contains("noeviction"), "{said}");
    let gone = lockctl(
        &server,
        &["--url", "redis://127.0.0.1:1", "doctor", "--json"],
    );
    assert_eq!(code(&gone), 1);
    assert_eq!(json(&gone)[0]["ok"], false);
}

/// Returns the exit code of the doctor, and the subjects of its findings with this mark, without the verdict.
fn marked(url: &str, server: &RedisServer, mark: &str) -> (i32, Vec<String>) {
    let examined = lockctl(server, &["--url", url, "doctor", "--json"]);
    let findings = json(&examined);
    let mut findings = findings.as_array().expect("a list").clone();
    let verdict = findings.pop().expect("a verdict");
    assert_eq!(verdict["what"], "verdict");
    let what = |finding: &serde_json::Value| finding["what"].as_str().expect("text").to_owned();
    let marked = findings.iter().filter(|finding| finding["mark"] == mark);
    (code(&examined), marked.map(what).collect())
}

#[test]
fn the_doctor_has_one_finding_for_a_server_that_is_refused() {
    let server = RedisServer::start();
    let shards = StandIn::start(server.port(), Quirk::OtherSlots);
    let active = StandIn::start(server.port(), Quirk::ActiveReplica);
    let refused = (1, vec!["locks".to_owned()]);
    assert_eq!(marked(&shards.url(), &server, "FAIL"), refused);
    assert_eq!(marked(&active.url(), &server, "FAIL"), refused);
    let replica = RedisServer::start();
    let primary = server.port().to_string();
    replica.cli(&["REPLICAOF", "127.0.0.1", &primary]);
    let refused = (1, vec!["role".to_owned()]);
    assert_eq!(marked(&replica.url(), &replica, "FAIL"), refused);
}

#[test]
fn the_doctor_warns_about_what_a_proxy_hides() {
    let server = RedisServer::start();
    let servers = [RedisServer::start(), RedisServer::start()];
    let twemproxy = ThirdParty::twemproxy(&servers);
    let envoy = StandIn::start(server.port(), Quirk::Envoy { password: None });
    for url in [twemproxy.url(), envoy.url()] {
        let hidden = ["server", "waiters", "proxy"].map(str::to_owned);
        assert_eq!(marked(&url, &server, "WARN"), (0, hidden.to_vec()));
    }
}

/// Connecting does not require this right, since locks work without it.
#[test]
fn a_list_without_the_right_to_scan_names_it() {
    for kind in Kind::tested() {
        let server = RedisServer::builder().kind(kind).start();
        server.cli(&[
            "ACL", "SETUSER", "poor", "on", ">word", "~*", "&*", "+@all", "-scan",
        ]);
        let url = server.url_as("poor", "word");
        let refused = lockctl(&server, &["--url", &url, "ls"]);
        assert_eq!(code(&refused), 64, "{refused:?}");
        let said = text(&refused.stderr);
        assert!(said.contains("grant it `+scan`"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn the_doctor_names_the_missing_rights() {
    let server = RedisServer::start();
    server.cli(&[
        "ACL", "SETUSER", "poor", "on", ">word", "~*", "&*", "+@all", "-get",
    ]);
    let url = server.url_as("poor", "word");
    let examined = lockctl(&server, &["--url", &url, "doctor", "--json"]);
    assert_eq!(code(&examined), 1, "{examined:?}");
    let findings = json(&examined);
    assert_eq!(
        (&findings[0]["what"], &findings[0]["ok"]),
        (&"rights".into(), &false.into())
    );
    let said = findings[0]["text"].as_str().expect("a text");
    assert!(said.contains("+get"), "{said}");
    assert!(said.contains("lock_core::guide::operations"), "{said}");
    assert!(!said.contains("word@"), "{said}");
}

#[test]
fn completions_are_printed_without_a_server() {
    for shell in ["bash", "zsh", "fish"] {
        let output = Command::new(LOCKCTL)
            .args(["completions", shell])
            .env_remove("LOCK_URL")
            .output()
            .expect("it starts");
        assert_eq!(code(&output), 0);
        assert!(text(&output.stdout).contains("lockctl"));
    }
    let without = Command::new(LOCKCTL)
        .arg("ls")
        .env_remove("LOCK_URL")
        .output()
        .expect("it starts");
    assert_eq!(code(&without), 64);
    assert!(text(&without.stderr).contains("LOCK_URL"));
}
