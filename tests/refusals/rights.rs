//! The least rights of a user of the server: the lines of `docs/operations.md` are enough, and each right in them is needed.
//! A missing right is found while connecting, and named once, with where the lines are.

use std::{
    fmt::Display,
    time::{Duration, Instant},
};

use lock_core::{
    LockError, LockGuard, LockManager, LockManagerBuilder, LockOptions, inspect::Topic,
};
use lock_tests::{
    AcquireFree as _, After, Cluster, Direction, HANG, Kind, Log, Proxy, RedisServer, Sentinels,
    Which, eventually, on_every_kind,
};
use tokio::{task::JoinHandle, time::timeout};

const PAGE: &str = include_str!("../../docs/operations.md");
const TTL: Duration = Duration::from_secs(10);

const QUEUE: &str = "__lock_core__:waiters:lock:k";

/// The time-out of a step of the suite. A step without a needed right never ends, and any other takes at most a beat.
const STEP: Duration = Duration::from_secs(20);

on_every_kind! { start:
    the_line_for_scripts_is_enough_and_has_nothing_too_many
    the_line_without_scripts_is_enough_and_has_nothing_too_many
    a_right_that_is_taken_away_later_leaves_nothing_behind
}

fn start(kind: Kind) -> RedisServer {
    RedisServer::builder().kind(kind).start()
}

/// The error, in the words that a user would see.
type Outcome<T = ()> = Result<T, String>;

/// The kind of commands with which a user keeps locks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Scripts,
    Commands,
}

async fn the_line_for_scripts_is_enough_and_has_nothing_too_many(server: &RedisServer) {
    each_right_counts(server, By::Scripts, &rights_of("locks")).await;
}

async fn the_line_without_scripts_is_enough_and_has_nothing_too_many(server: &RedisServer) {
    each_right_counts(server, By::Commands, &rights_of("locks-watch")).await;
}

async fn each_right_counts(server: &RedisServer, by: By, rights: &[String]) {
    Log::of_the_process();
    allow(server, "whole", rights);
    suite(server, "whole", by).await.expect("all that it takes");
    for command in rights.iter().filter_map(|right| right.strip_prefix('+')) {
        assert!(server.calls(command) > 0, "{command} is never called");
    }
    for (number, right) in rights.iter().enumerate() {
        let user = format!("poor{number}");
        let rest: Vec<_> = rights.iter().filter(|one| *one != right).cloned().collect();
        allow(server, &user, &rest);
        server.cli(&["FLUSHALL"]);
        let logged = logged_of(server).len();
        let failed = timeout(HANG, suite(server, &user, by))
            .await
            .unwrap_or_else(|_| panic!("without {right}: hangs"))
            .expect_err(&format!("without {right}, everything works"));
        let reported = format!("{failed} {}", &logged_of(server)[logged..]);
        assert!(names(&reported, right), "without {right}: {reported}");
        assert!(
            points_to_the_page(&failed) || !failed.starts_with("cannot connect"),
            "without {right}: {failed}"
        );
        // The keys of the trial are gone, or expire soon.
        eventually(
            HANG,
            &format!("without {right}: nothing is left"),
            async || {
                let mut tried = server.keys("__lock_core__:check:*");
                tried.extend(server.keys("lock:__check__:*"));
                tried.is_empty()
            },
        )
        .await;
    }
}

/// Whether a message says where the lines are.
fn points_to_the_page(message: &str) -> bool {
    PAGE.contains("\n## Rights\n")
        && message.contains("\"Rights\"")
        && message.contains("lock_core::guide::operations")
}

/// Whether a message names a right: in the form that grants it, or as the command in the server's or the manual's spelling.
fn names(reported: &str, right: &str) -> bool {
    let word = |word: &str| {
        let ends = |rest: &str| !rest.starts_with(|next: char| next.is_ascii_alphanumeric());
        reported
            .match_indices(word)
            .any(|(at, _)| ends(&reported[at + word.len()..]))
    };
    match right.strip_prefix('+') {
        None => reported.contains(right),
        Some(name) => {
            word(right) || word(&format!("'{name}")) || word(&format!("`{}", name.to_uppercase()))
        }
    }
}

#[test]
fn a_message_names_a_right_only_as_a_whole_word() {
    assert!(names("grant it `+eval +evalsha`", "+eval"));
    assert!(!names("grant it `+evalsha`", "+eval"));
    assert!(names("run the 'ping' command", "+ping"));
    assert!(!names("no luck", "+ping"));
}

/// The rights in the page's line for a user.
fn rights_of(user: &str) -> Vec<String> {
    let start = format!("ACL SETUSER {user} on >password resetchannels ");
    let line = PAGE.lines().find_map(|line| line.strip_prefix(&start));
    let rights = line.expect("the page has a line for this user");
    rights.split(' ').map(str::to_owned).collect()
}

fn allow(server: &RedisServer, user: &str, rights: &[String]) {
    let mut command = vec!["ACL", "SETUSER", user, "on", ">word", "resetchannels"];
    command.extend(rights.iter().map(String::as_str));
    server.cli(&command);
}

/// Does everything that a manager does, as far as this user can.
async fn suite(server: &RedisServer, user: &str, by: By) -> Outcome {
    let one = connect(server, user).await?;
    let other = connect(server, user).await?;
    a_lock_is_taken_again_and_again(&one, &other).await?;
    a_lock_is_waited_for(server, &one, &other, by).await?;
    if by == By::Scripts {
        a_lock_is_held_by_several(server, &one, &other).await?;
    }
    a_lease_is_renewed_kept_and_lost(server, &one).await?;
    operators_look_and_take_away(&one, by).await?;
    one_task_holds_several_and_the_same(&one).await?;
    tasks_hand_a_lock_over(server, &one, &other, by).await?;
    tokens_grow_across_losses(server, &one, &other).await
}

async fn connect(server: &RedisServer, user: &str) -> Outcome<LockManager> {
    let url = server.url_as(user, "word");
    LockManager::connect(&url)
        .await
        .map_err(reported("cannot connect"))
}

async fn acquire(locks: &LockManager, key: &str) -> Outcome<LockGuard> {
    acquire_with(locks, key, LockOptions::new(TTL)).await
}

async fn acquire_with(locks: &LockManager, key: &str, options: LockOptions) -> Outcome<LockGuard> {
    let acquire = locks.acquire(key, options.wait(Duration::from_secs(3)));
    acquire.await.map_err(reported("cannot acquire"))
}

async fn release(guard: LockGuard) -> Outcome {
    guard.release().await.map_err(reported("cannot release"))
}

fn reported(what: &'static str) -> impl Fn(LockError) -> String {
    move |error| format!("{what}: {error} {error:?}")
}

/// Waits for a condition that may never hold.
async fn until(what: impl Display, mut condition: impl AsyncFnMut() -> bool) -> Outcome {
    let started = Instant::now();
    while !condition().await {
        if started.elapsed() > STEP {
            return Err(format!("not in time: {what}"));
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(())
}

async fn a_lock_is_taken_again_and_again(one: &LockManager, other: &LockManager) -> Outcome {
    for _ in 0..3 {
        let guard = acquire(one, "k").await?;
        let tried = other.try_acquire("k", LockOptions::new(TTL)).await;
        if tried.map_err(reported("cannot try"))?.is_some() {
            return Err("two have it".to_owned());
        }
        release(guard).await?;
        release(acquire(other, "k").await?).await?;
    }
    Ok(())
}

async fn a_lock_is_waited_for(
    server: &RedisServer,
    one: &LockManager,
    other: &LockManager,
    by: By,
) -> Outcome {
    let guard = acquire(one, "k").await?;
    let waiting = wait_for(other, "k");
    if by == By::Scripts {
        until("it is in the wait queue", async || in_line(server) == 1).await?;
        let (checks, messages) = (server.calls("zremrangebyscore"), server.calls("publish"));
        until("it checks on its place", async || {
            server.calls("zremrangebyscore") > checks
        })
        .await?;
        // A waiter that goes away removes its entry.
        let third = wait_for(one, "k2");
        let blocked = acquire(other, "k2").await;
        third.abort();
        drop(blocked);
        // An entry of a process that has been silent for long is passed over.
        server.cli(&[
            "ZADD",
            QUEUE,
            "4500000000000001",
            "gone 1 60000 x lc1:gone/1:00",
        ]);
        release(guard).await?;
        let next = joined(waiting).await?;
        if server.calls("publish") == messages {
            return Err("the lock was not granted by a message".to_owned());
        }
        let leaving = wait_for(one, "k");
        until("it is in the wait queue", async || in_line(server) == 1).await?;
        leaving.abort();
        until("it has left", async || in_line(server) == 0).await?;
        return release(next).await;
    }
    until("it asks again", async || !waiting.is_finished()).await?;
    release(guard).await?;
    release(joined(waiting).await?).await
}

/// Checks shared locks and permits.
async fn a_lock_is_held_by_several(
    server: &RedisServer,
    one: &LockManager,
    other: &LockManager,
) -> Outcome {
    let waits_for = |options: LockOptions| {
        let other = other.clone();
        tokio::spawn(async move { other.acquire("k", options.wait(HANG)).await })
    };
    let shared = || LockOptions::new(TTL).shared();
    let guard = acquire(one, "k").await?;
    let reader = waits_for(shared());
    until("it is in the wait queue", async || in_line(server) == 1).await?;
    release(guard).await?;
    let reader = joined(reader).await?;
    let second = acquire_with(one, "k", shared()).await?;
    let writer = wait_for(one, "k");
    until("it is in the wait queue", async || in_line(server) == 1).await?;
    reader
        .lease()
        .verify()
        .await
        .map_err(reported("cannot verify"))?;
    release(second).await?;
    release(reader).await?;
    release(joined(writer).await?).await?;

    let permits = || LockOptions::new(TTL).permits(2);
    let first = acquire_with(one, "k", permits()).await?;
    let second = acquire_with(one, "k", permits()).await?;
    let third = waits_for(permits());
    until("it is in the wait queue", async || in_line(server) == 1).await?;
    let seen = one.inspect("k").await.map_err(reported("cannot inspect"))?;
    if seen.is_none_or(|seen| seen.holders != 2) {
        return Err("not two holders".to_owned());
    }
    release(first).await?;
    release(joined(third).await?).await?;
    release(second).await
}

fn wait_for(locks: &LockManager, key: &'static str) -> JoinHandle<Result<LockGuard, LockError>> {
    let locks = locks.clone();
    tokio::spawn(async move { locks.acquire(key, LockOptions::new(TTL).wait(HANG)).await })
}

async fn joined(task: JoinHandle<Result<LockGuard, LockError>>) -> Outcome<LockGuard> {
    let ended = timeout(STEP, task).await.map_err(|_| "it waits for ever")?;
    ended
        .map_err(|_| "it panicked")?
        .map_err(reported("cannot wait"))
}

/// The number of processes that wait for the key of the suite.
fn in_line(server: &RedisServer) -> usize {
    server.queue(QUEUE).len()
}

async fn a_lease_is_renewed_kept_and_lost(server: &RedisServer, locks: &LockManager) -> Outcome {
    let short = LockOptions::new(Duration::from_secs(2));
    let guard = acquire_with(locks, "k", short).await?;
    let mut before = guard.lease().remaining();
    until("it is renewed", async || {
        let remaining = guard.lease().remaining();
        std::mem::replace(&mut before, remaining) < remaining
    })
    .await?;
    let verified = guard.lease().verify().await;
    verified.map_err(reported("cannot verify"))?;
    server.cli(&["DEL", "lock:k"]);
    until("it is lost", async || guard.lease().is_lost()).await?;
    drop(guard);
    let kept = LockOptions::new(TTL).min_hold(Duration::from_secs(5));
    let guard = acquire_with(locks, "kept", kept).await?;
    release(guard).await?;
    match server.pttl("lock:kept") {
        Some(left) if left <= Duration::from_secs(5) => Ok(()),
        odd => Err(format!("not kept: {odd:?}")),
    }
}

async fn operators_look_and_take_away(locks: &LockManager, by: By) -> Outcome {
    let guard = acquire(locks, "k").await?;
    let info = locks
        .inspect("k")
        .await
        .map_err(reported("cannot inspect"))?;
    if info.is_none() {
        return Err("the lock is not held".to_owned());
    }
    let forced = locks.force_release("k").await;
    forced.map_err(reported("cannot take away"))?;
    if guard.release().await.is_ok() {
        return Err("it was not taken away".to_owned());
    }
    let health = locks.check().await.map_err(reported("cannot check"))?;
    match (by, &health.warnings[..]) {
        (By::Scripts, []) => Ok(()),
        (By::Commands, [one]) if one.text.contains("there is no queue") => Ok(()),
        (_, warnings) => Err(format!("{warnings:?}")),
    }
}

async fn one_task_holds_several_and_the_same(locks: &LockManager) -> Outcome {
    let several = locks
        .acquire_all(["b", "a", "c"], LockOptions::new(TTL))
        .await;
    release(several.map_err(reported("cannot acquire several"))?).await?;
    let again = locks
        .run("k", LockOptions::new(TTL), async |_| {
            release(acquire(locks, "k").await?).await
        })
        .await;
    again.map_err(reported("cannot run"))?
}

/// Another process waits in the queue; it gets a message and the lock.
async fn tasks_hand_a_lock_over(
    server: &RedisServer,
    one: &LockManager,
    other: &LockManager,
    by: By,
) -> Outcome {
    let guard = acquire(one, "k").await?;
    let mut waiting: Vec<_> = (0..8).map(|_| wait_for(one, "k")).collect();
    waiting.push(wait_for(other, "k"));
    if by == By::Scripts {
        until("the other one stands in line", async || {
            in_line(server) == 1
        })
        .await?;
    }
    release(guard).await?;
    let mut tokens = Vec::new();
    let (sender, mut granted) = tokio::sync::mpsc::unbounded_channel();
    for task in waiting {
        let sender = sender.clone();
        tokio::spawn(async move {
            let guard = joined(task).await;
            drop(sender.send(match guard {
                Ok(guard) => {
                    let token = u64::from(guard.lease().fencing_token());
                    release(guard).await.map(|()| token)
                }
                Err(failed) => Err(failed),
            }));
        });
    }
    drop(sender);
    while let Some(token) = granted.recv().await {
        tokens.push(token?);
    }
    tokens.sort_unstable();
    tokens.dedup();
    match tokens.len() {
        9 => Ok(()),
        odd => Err(format!("{odd} different tokens of 9")),
    }
}

async fn tokens_grow_across_losses(
    server: &RedisServer,
    one: &LockManager,
    other: &LockManager,
) -> Outcome {
    let mut last = 0;
    for loss in [&["FLUSHALL"][..], &["SCRIPT", "FLUSH"]] {
        for locks in [one, other, one, one] {
            let guard = acquire(locks, "k").await?;
            let token = u64::from(guard.lease().fencing_token());
            if token <= last {
                return Err(format!("{token} after {last}"));
            }
            last = token;
            release(guard).await?;
        }
        server.cli(loss);
    }
    release(acquire(one, "k").await?).await
}

async fn a_right_that_is_taken_away_later_leaves_nothing_behind(server: &RedisServer) {
    let rights = rights_of("locks");
    // The commands that an acquire of a free key calls.
    for command in ["exists", "set", "xadd"] {
        server.cli(&["FLUSHALL"]);
        allow(server, command, &rights);
        let locks = connect(server, command).await.expect("all rights");
        server.cli(&["ACL", "SETUSER", command, &format!("-{command}")]);
        let started = Instant::now();
        let failed = acquire_with(&locks, "k", LockOptions::new(Duration::from_secs(60)))
            .await
            .expect_err("not without it");
        assert!(started.elapsed() < STEP, "{command}: {failed}");
        assert!(failed.contains("Unavailable"), "{command}: {failed}");
        assert!(
            failed.contains("NOPERM") || failed.contains("script"),
            "{command}: {failed}"
        );
        // The clean-up frees the key, and not its expiry.
        server.cli(&["ACL", "SETUSER", command, &format!("+{command}")]);
        until("it is gone", async || server.keys("lock:*").is_empty())
            .await
            .unwrap_or_else(|failed| panic!("{command}: {failed}"));
    }
}

/// The warnings about a server.
fn logged_of(server: &RedisServer) -> String {
    logged_at(server, " WARN ")
}

/// The lines about a server that were logged at a level.
fn logged_at(server: &RedisServer, level: &str) -> String {
    let (text, port) = (
        Log::of_the_process().text(),
        format!("127.0.0.1:{}", server.port()),
    );
    let lines = text
        .lines()
        .filter(|line| line.contains(&port) && line.contains(level));
    lines.fold(String::new(), |text, line| text + line + "\n")
}

/// The number of lines about a server that may evict locks.
fn evictions(server: &RedisServer) -> usize {
    let text = logged_of(server);
    text.lines()
        .filter(|line| line.contains("maxmemory-policy"))
        .count()
}

/// A manager that knows the eviction policy, if the server reports it: a later reply on the same connection has come.
async fn informed(url: &str) -> LockManager {
    let locks = LockManager::connect(url).await.expect("up");
    for _ in 0..3 {
        locks.inspect("k").await.expect("up");
    }
    locks
}

#[tokio::test]
async fn an_eviction_policy_that_threatens_locks_is_warned_of_once() {
    Log::of_the_process();
    let server = RedisServer::builder()
        .setting("maxmemory", "100mb")
        .setting("maxmemory-policy", "volatile-lru")
        .start();
    let locks = informed(&server.url()).await;
    lock_tests::eventually(HANG, "it is warned of", async || evictions(&server) == 1).await;
    let text = logged_of(&server);
    assert!(
        text.contains("volatile-lru") && text.contains("`noeviction`"),
        "{text}"
    );
    // The warning is not repeated on a new connection.
    server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    lock_tests::eventually(HANG, "it is there again", async || {
        locks.inspect("k").await.is_ok()
    })
    .await;
    for _ in 0..3 {
        locks.inspect("k").await.expect("up");
    }
    assert_eq!(evictions(&server), 1);
    // Another manager logs the warning again.
    let _other = informed(&server.url()).await;
    lock_tests::eventually(HANG, "it is warned of again", async || {
        evictions(&server) == 2
    })
    .await;
}

#[tokio::test]
async fn what_is_no_danger_or_not_known_is_not_warned_of() {
    Log::of_the_process();
    for settings in [
        &[("maxmemory", "100mb"), ("maxmemory-policy", "noeviction")][..],
        &[("maxmemory", "0"), ("maxmemory-policy", "allkeys-lru")],
    ] {
        let builder = RedisServer::builder();
        let builder = settings.iter().fold(builder, |builder, (name, value)| {
            builder.setting(name, value)
        });
        let server = builder.start();
        let _locks = informed(&server.url()).await;
        assert_eq!(logged_of(&server), "", "{settings:?}");
    }
    let server = RedisServer::builder()
        .setting("maxmemory", "100mb")
        .setting("maxmemory-policy", "allkeys-lru")
        .start();
    let mut rights = rights_of("locks");
    rights.retain(|right| right != "+info");
    allow(&server, "blind", &rights);
    let _locks = informed(&server.url_as("blind", "word")).await;
    let logged = logged_of(&server);
    assert!(logged.contains("`+info`"), "{logged}");
    assert_eq!(logged.lines().count(), 1, "{logged}");
}

/// The groups of rights in the row of a deployment, in the page's table.
fn row_of(deployment: &str) -> Vec<Vec<String>> {
    let start = format!("| {deployment} | ");
    let row = PAGE.lines().find_map(|line| line.strip_prefix(&start));
    let row = row.expect("the page has a row for it").replace("\\|", "|");
    let groups = row.split('`').skip(1).step_by(2);
    groups
        .map(|group| group.split(' ').map(str::to_owned).collect())
        .collect()
}

/// Lets one process wait for another, and checks the health.
async fn two_processes(url: &str) -> Outcome {
    let up = async || {
        LockManager::connect(url)
            .await
            .map_err(reported("cannot connect"))
    };
    let (one, other) = (up().await?, up().await?);
    let guard = acquire(&one, "k").await?;
    let waiting = wait_for(&other, "k");
    until("it is in the wait queue", async || {
        let info = one.inspect("k").await.ok().flatten();
        info.is_some_and(|info| info.waiters == 1)
    })
    .await?;
    release(guard).await?;
    release(joined(waiting).await?).await?;
    let health = one.check().await.map_err(reported("cannot check"))?;
    match &health.warnings[..] {
        [] => Ok(()),
        warnings => Err(format!("{warnings:?}")),
    }
}

#[tokio::test]
async fn the_row_for_a_cluster_is_enough_and_names_what_is_needed() {
    Log::of_the_process();
    let cluster = Cluster::start();
    let [row, needless] = &row_of("Cluster")[..] else {
        panic!("more, and less");
    };
    let mut rights = rights_of("locks");
    rights.retain(|right| !needless.contains(right));
    rights.extend(row.iter().cloned());
    let with = async |user: &str, rights: &[String]| {
        for node in cluster.nodes() {
            allow(node, user, rights);
        }
        let url = cluster.url();
        two_processes(&url.replace("://", &format!("://{user}:word@"))).await
    };
    with("whole", &rights).await.expect("all that it takes");
    // `ASKING` is needed only while a slot moves.
    for right in row.iter().filter(|right| *right != "+asking") {
        let rest: Vec<_> = rights.iter().filter(|one| *one != right).cloned().collect();
        let user = format!("without-{}", &right[1..4]);
        let failed = with(&user, &rest).await;
        let failed = failed.expect_err(&format!("without {right}, everything works"));
        let logged: String = cluster.nodes().iter().map(logged_of).collect();
        let reported = format!("{failed} {logged}");
        let command = right[1..].split('|').next().expect("a word");
        assert!(reported.contains(command), "without {right}: {reported}");
    }
}

#[tokio::test]
async fn the_row_for_sentinels_is_enough() {
    let [row, theirs] = &row_of("Sentinel")[..] else {
        panic!("on the servers, and on the sentinels");
    };
    let rights = [rights_of("locks"), row.clone()].concat().join(" ");
    let builder = Sentinels::builder().user("locks", "word", &format!("resetchannels {rights}"));
    let sentinels = builder.start();
    for sentinel in sentinels.sentinels() {
        allow(sentinel, "asks", theirs);
    }
    let url = format!(
        "{}?sentinel_user=asks&sentinel_password=word",
        sentinels.url()
    );
    two_processes(&url).await.expect("all that it takes");
    for right in theirs.iter().filter(|right| *right != "+ping") {
        for sentinel in sentinels.sentinels() {
            sentinel.cli(&["ACL", "SETUSER", "asks", &right.replace('+', "-")]);
        }
        let failed = two_processes(&url).await;
        let failed = failed.expect_err(&format!("without {right}, everything works"));
        assert!(failed.contains("sentinel"), "without {right}: {failed}");
    }
}

/// Takes and releases a lock.
async fn one_lock(locks: Result<LockManager, LockError>) -> Outcome {
    let locks = locks.map_err(reported("cannot connect"))?;
    release(acquire(&locks, "k").await?).await
}

#[tokio::test]
async fn another_database_takes_the_right_of_its_row() {
    let server = RedisServer::start();
    let rights = rights_of("locks");
    allow(&server, "poor", &rights);
    let [row] = &row_of("a database other than 0")[..] else {
        panic!("one group");
    };
    allow(&server, "whole", &[rights, row.clone()].concat());
    let url = |user: &str| server.url_as(user, "word") + "/1";
    let locks = LockManager::connect(&url("whole")).await;
    one_lock(locks).await.expect("all that it takes");
    let locks = LockManager::connect(&url("poor")).await;
    let failed = one_lock(locks).await.expect_err("without +select");
    assert!(names(&failed, "+select"), "{failed}");
}

#[tokio::test]
async fn acknowledgements_take_the_right_of_their_row() {
    let (server, replica) = (RedisServer::start(), RedisServer::start());
    let port = server.port().to_string();
    replica.cli(&["REPLICAOF", "127.0.0.1", &port]);
    let rights = rights_of("locks");
    allow(&server, "poor", &rights);
    let [row] = &row_of("replicas that must have acknowledged")[..] else {
        panic!("one group");
    };
    allow(&server, "whole", &[rights, row.clone()].concat());
    let connect = async |user: &str| {
        let url = server.url_as(user, "word");
        let builder = LockManager::builder().min_replicas_acked(1, STEP);
        builder.connect(&url).await
    };
    lock_tests::eventually(HANG, "the replica has all data", async || {
        let state = replica.info("replication");
        state.contains("master_link_status:up")
    })
    .await;
    let locks = connect("whole").await;
    one_lock(locks).await.expect("all that it takes");
    let locks = connect("poor").await;
    let failed = one_lock(locks).await.expect_err("without +wait");
    assert!(names(&failed, "+wait"), "{failed}");
    assert!(!failed.contains("word@"), "{failed}");
}

#[tokio::test]
async fn several_servers_take_no_more_than_one() {
    let servers: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
    let connect = async |user: &str| {
        let urls = servers.iter().map(|server| server.url_as(user, "word"));
        let builder = LockManager::builder().quarantine(Duration::ZERO);
        builder.redlock(urls).await
    };
    let rights = rights_of("locks");
    for server in &servers {
        allow(server, "whole", &rights);
    }
    let locks = connect("whole").await.expect("all that it takes");
    one_lock(Ok(locks.clone())).await.expect("and a lock");
    operators_look_and_take_away(&locks, By::Scripts)
        .await
        .expect("operators");
    let rest: Vec<_> = rights.into_iter().filter(|one| one != "+info").collect();
    for server in &servers {
        allow(server, "poor", &rest);
    }
    let locks = connect("poor").await;
    let failed = one_lock(locks).await.expect_err("without +info");
    assert!(
        names(&failed, "+info") && points_to_the_page(&failed),
        "{failed}"
    );
    // A right that only one of the servers refuses is found, too.
    servers[2].cli(&["ACL", "SETUSER", "whole", "resetkeys", "~__lock_core__:*"]);
    let failed = one_lock(connect("whole").await)
        .await
        .expect_err("without the keys");
    assert!(
        failed.contains("~lock:*") && points_to_the_page(&failed),
        "{failed}"
    );
    assert!(failed.contains(&servers[2].port().to_string()), "{failed}");
    // Votes need scripts.
    for server in &servers {
        server.add_user_without_scripts();
    }
    let failed = one_lock(connect("plain").await)
        .await
        .expect_err("without scripts");
    assert!(
        failed.contains("+eval +evalsha") && points_to_the_page(&failed),
        "{failed}"
    );
}

/// Connects as a user with all commands, all channels, and these rights.
async fn connect_with(
    server: &RedisServer,
    user: &str,
    keys: &[&str],
    builder: LockManagerBuilder,
) -> Result<LockManager, LockError> {
    let rules = ["on", ">word", "resetkeys", "&*", "+@all"];
    server.cli(&[&["ACL", "SETUSER", user], &rules[..], keys].concat());
    builder.connect(&server.url_as(user, "word")).await
}

#[track_caller]
fn invalid(result: Result<impl std::fmt::Debug, LockError>) -> String {
    match result {
        Err(LockError::Invalid { reason, .. }) => reason.to_string(),
        odd => panic!("not `Invalid`: {odd:?}"),
    }
}

#[tokio::test]
async fn a_check_finds_a_right_that_was_taken_away_and_leaves_no_key() {
    let server = RedisServer::start();
    let builder = LockManager::builder;
    let locks = connect_with(&server, "user", &["~*"], builder())
        .await
        .expect("all rights");
    let health = locks.check().await.expect("all rights");
    assert_eq!(health.warnings, []);
    let change = |rules: &[&str]| server.cli(&[&["ACL", "SETUSER", "user"], rules].concat());
    let own = "~__lock_core__:*";
    for (taken, named, given) in [
        (&["-evalsha"][..], "'evalsha'", "+evalsha"),
        (&["-zpopmin"], "+zpopmin ~__lock_core__:*", "+zpopmin"),
        (&["-time"], "+time", "+time"),
        (&["resetchannels"], "+publish &__lock_core__:grants:*", "&*"),
        (&["resetkeys", "~lock:*"], "~__lock_core__:*", "~*"),
        (&["resetkeys", own], "~lock:*", "~*"),
        (&["resetkeys", own, "%R~lock:*"], "~lock:*", "~*"),
        // A selector allows keys for one command only.
        (&["resetkeys", own, "(~lock:* +get)"], "~lock:*", "~*"),
    ] {
        change(taken);
        let refused = invalid(locks.check().await);
        assert!(refused.contains(named), "{taken:?}: {refused}");
        assert!(points_to_the_page(&refused), "{taken:?}: {refused}");
        change(&[given]);
    }
    // Many checks run at once, as the health checks of many processes do.
    let mut checks = tokio::task::JoinSet::new();
    for number in 0..16 {
        let (locks, check) = (locks.clone(), "k".repeat(number));
        checks.spawn(async move {
            locks
                .check()
                .await
                .map_err(|error| format!("{check}: {error}"))
        });
    }
    for health in checks.join_all().await {
        assert_eq!(health.expect("all rights").warnings, []);
    }
    // The key was released, and not left to expire.
    assert_eq!(server.keys("*"), ["__lock_core__:clock"]);
    // The key of a check that is dropped half-way ends by its expiry.
    let proxy = Proxy::start(server.port());
    let slow = LockManager::connect(&proxy.url_as("user", "word"))
        .await
        .expect("all rights");
    proxy.lose(Direction::Replies, Which::of("EVALSHA"), After::Silence);
    let check = timeout(Duration::from_millis(100), slow.check()).await;
    check.expect_err("no reply");
    eventually!(HANG, "no key is left" => server.keys("*") == ["__lock_core__:clock"]);
}

#[tokio::test]
async fn a_check_key_stands_for_the_keys_that_a_user_may_use() {
    let server = RedisServer::start();
    let keys = &["~lock:order:*", "~__lock_core__:*"];
    let with = |key: &str| LockManager::builder().check_key(key);
    let refused = invalid(connect_with(&server, "user", keys, LockManager::builder()).await);
    assert!(refused.contains("~lock:*"), "{refused}");
    let refused = invalid(connect_with(&server, "user", keys, with("invoice:1")).await);
    assert!(points_to_the_page(&refused), "{refused}");
    let locks = connect_with(&server, "user", keys, with("order:1"))
        .await
        .expect("its own key");
    assert_eq!(locks.check().await.expect("its own").warnings, []);
    assert_eq!(server.keys("*"), ["__lock_core__:clock"]);
    // The key may be busy with a lock of this library, or with any other value.
    let guard = locks.acquire_free("order:1", LockOptions::new(TTL)).await;
    locks.check().await.expect("nothing but busy");
    let other = connect_with(&server, "user", keys, with("order:1"))
        .await
        .expect("busy");
    guard.lease().verify().await.expect("no process took it");
    release(guard).await.expect("held");
    server.cli(&["SET", "lock:order:1", "theirs"]);
    other.check().await.expect("nothing but busy");
    connect_with(&server, "user", keys, with("order:1"))
        .await
        .expect("busy");
    assert_eq!(server.get("lock:order:1").as_deref(), Some("theirs"));
    // The rights are still checked.
    server.cli(&[
        "ACL",
        "SETUSER",
        "user",
        "resetkeys",
        "~__lock_core__:*",
        "%R~lock:*",
    ]);
    let refused = invalid(other.check().await);
    assert!(refused.contains("~lock:*"), "{refused}");
    assert_eq!(server.get("lock:order:1").as_deref(), Some("theirs"));
}

#[tokio::test]
async fn an_odd_check_key_is_a_clear_error() {
    let server = RedisServer::start();
    server.cli(&["RPUSH", "lock:list", "precious"]);
    for (key, says) in [
        (
            "list",
            "the check_key cannot be used: the key holds something that is not a lock",
        ),
        ("", "the check_key cannot be used: the key is empty"),
        (
            &*"k".repeat(513),
            "the check_key cannot be used: the key has 513 bytes",
        ),
    ] {
        let refused = LockManager::builder()
            .check_key(key)
            .connect(&server.url())
            .await;
        let refused = invalid(refused);
        assert!(refused.contains(says), "{refused}");
        let urls = [
            "redis://127.0.0.1:1",
            "redis://127.0.0.1:2",
            "redis://127.0.0.1:3",
        ];
        if key != "list" {
            invalid(LockManager::builder().check_key(key).redlock(urls).await);
        }
    }
    let reserved = LockManager::builder()
        .key_prefix("")
        .check_key("__lock_core__:clock");
    assert!(invalid(reserved.connect(&server.url()).await).contains("reserved"));
    assert_eq!(server.cli(&["LLEN", "lock:list"]), redis::Value::Int(1));
    let locks = LockManager::builder()
        .check_key("later")
        .connect(&server.url())
        .await;
    let locks = locks.expect("free");
    server.cli(&["RPUSH", "lock:later", "precious"]);
    assert!(invalid(locks.check().await).contains("check_key"));
    // A manager in memory has no rights to check.
    for key in ["", "any"] {
        let memory = LockManager::builder().check_key(key).in_memory();
        release(acquire(&memory, "k").await.expect("free"))
            .await
            .expect("held");
        memory.check().await.expect("well");
    }
}

#[tokio::test]
async fn an_empty_prefix_without_a_check_key_is_warned_of_and_never_refused() {
    Log::of_the_process();
    let server = RedisServer::start();
    let unprefixed = || LockManager::builder().key_prefix("");
    let own = &["~__lock_core__:*"];
    let warned = || {
        logged_of(&server)
            .matches("the key prefix is empty")
            .count()
    };
    let locks = connect_with(&server, "user", own, unprefixed())
        .await
        .expect("no refusal");
    assert_eq!(warned(), 1);
    let health = locks.check().await.expect("no refusal");
    let [warning] = &health.warnings[..] else {
        panic!("{health:?}");
    };
    assert!(warning.text.contains("check_key"), "{warning}");
    assert!(
        server
            .keys("*")
            .iter()
            .all(|key| key.starts_with("__lock_core__:"))
    );
    let refused = connect_with(&server, "user", own, unprefixed().check_key("orders")).await;
    assert!(points_to_the_page(&invalid(refused)));
    let all = &["~orders", "~__lock_core__:*"];
    let locks = connect_with(&server, "user", all, unprefixed().check_key("orders")).await;
    let health = locks
        .expect("its own key")
        .check()
        .await
        .expect("its own key");
    assert_eq!(health.warnings, []);
    assert_eq!(warned(), 1, "once");
}

#[tokio::test]
async fn a_user_without_scripts_gets_one_line_on_what_that_costs() {
    Log::of_the_process();
    let server = RedisServer::start();
    allow(&server, "user", &rights_of("locks-watch"));
    let reported = || {
        let text = logged_of(&server);
        text.matches("there is no queue").count()
    };
    let locks = connect(&server, "user").await.expect("enough for locks");
    assert_eq!(reported(), 1);
    let health = locks.check().await.expect("enough for locks");
    let [warning] = &health.warnings[..] else {
        panic!("{health:?}");
    };
    assert!(
        warning.topic == Topic::Rights
            && warning.text.contains("waiters poll")
            && warning.text.contains("no queue"),
        "{warning}"
    );
    server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    eventually!(HANG, "it is there again" => locks.check().await.is_ok());
    assert_eq!(reported(), 1, "not again on a new connection");
    assert!(points_to_the_page(&warning.text), "{warning}");
    // It names the alternative if rights for that are missing, too.
    server.cli(&["ACL", "SETUSER", "user", "-watch"]);
    let failed = connect(&server, "user").await.expect_err("neither");
    assert!(
        names(&failed, "+evalsha") && names(&failed, "+watch"),
        "{failed}"
    );
}

#[tokio::test]
async fn each_node_of_a_cluster_is_tried() {
    let cluster = Cluster::start();
    let keys: Vec<String> = rights_of("locks");
    let row = row_of("Cluster");
    let rights: Vec<String> = keys.into_iter().chain(row[0].clone()).collect();
    let url = cluster.url().replace("://", "://user:word@");
    for prefix in ["lock:", "{tag}:"] {
        let connect = || LockManager::builder().key_prefix(prefix).connect(&url);
        let [pattern] = [format!("~{prefix}*")];
        for node in cluster.nodes() {
            allow(node, "user", &rights);
            node.cli(&["ACL", "SETUSER", "user", &pattern]);
        }
        let locks = connect().await.expect("all that it takes");
        locks.check().await.expect("all that it takes");
        for node in cluster.masters() {
            // All keys of a prefix with a tag are on one node.
            if prefix.starts_with('{') && node.port() != cluster.node_of("{tag}").port() {
                continue;
            }
            node.cli(&["ACL", "SETUSER", "user", "resetkeys", "~__lock_core__:*"]);
            for refused in [invalid(connect().await), invalid(locks.check().await)] {
                assert!(refused.contains("~lock:*"), "{refused}");
                assert!(points_to_the_page(&refused), "{refused}");
                assert!(refused.contains(&format!(":{} ", node.port())), "{refused}");
            }
            node.cli(&["ACL", "SETUSER", "user", &pattern]);
            connect().await.expect("all that it takes");
        }
        for node in cluster.masters() {
            let left = node.keys("*");
            assert!(left.iter().all(|key| key.ends_with(":clock")), "{left:?}");
        }
    }
}

#[tokio::test]
async fn connecting_logs_once_what_it_is_connected_to() {
    Log::of_the_process();
    let server = RedisServer::start();
    server.add_user_without_scripts();
    let reported = || {
        let text = logged_at(&server, " INFO ");
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let mut before = 0;
    for (url, says) in [
        (
            server.url_as("", ""),
            "protocol=\"RESP3\" mode=\"push\" scripts=true",
        ),
        (
            server.url_as("", "") + "?protocol=2",
            "protocol=\"RESP2\" mode=\"polling\" scripts=true",
        ),
        (
            server.url_as("plain", "word"),
            "protocol=\"RESP3\" mode=\"polling\" scripts=false",
        ),
    ] {
        let locks = LockManager::connect(&url).await.expect("up");
        let lines = reported();
        assert_eq!(lines.len(), before + 1, "{lines:?}");
        let line = &lines[before];
        let what = format!("kind=\"redis\" version=\"7.0.15\" {says}");
        assert!(line.contains(&what) && line.contains("connected"), "{line}");
        assert!(!line.contains("word"), "{line}");
        before += 1;
        server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        eventually!(HANG, "it is there again" => locks.check().await.is_ok());
        assert_eq!(reported().len(), before, "not again on a new connection");
    }
}
