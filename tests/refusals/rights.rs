//! The minimal rights of a user of the server. Each right in the lines of `docs/operations.md` is needed, and a
//! missing one is named: by the error of connecting, which points to that page, or by a warning.
//! `topologies/servers.rs` runs its suite as the user of the line for scripts.

use std::time::Duration;

use lock_core::{LockError, LockManager, LockManagerBuilder, LockOptions, inspect::Topic};
use lock_tests::{
    AcquireFree as _, AfterLoss, Cluster, Direction, Frames, HANG, Kind, Log, Proxy, RedisServer,
    ReleaseHeld as _, SECOND, Sentinels, assert_fails, connect, eventually, on_every_kind, options,
    patient,
};
use tokio::time::timeout;

const PAGE: &str = include_str!("../../docs/operations.md");

const CLOCK: &str = "__lock_core__:clock";

on_every_kind! { start:
    each_right_in_the_line_for_scripts_is_needed
    each_right_in_the_line_without_scripts_is_needed
    a_revoked_right_costs_the_lock_and_leaves_none
}

fn start(kind: Kind) -> RedisServer {
    RedisServer::builder().kind(kind).start()
}

async fn each_right_in_the_line_for_scripts_is_needed(server: &RedisServer) {
    each_right_is_needed(server, &rights_of("locks")).await;
}

async fn each_right_in_the_line_without_scripts_is_needed(server: &RedisServer) {
    each_right_is_needed(server, &rights_of("locks-watch")).await;
}

/// Withholds each right in turn. It must be named, in an error or in a warning.
async fn each_right_is_needed(server: &RedisServer, rights: &[String]) {
    allow(server, "whole", rights);
    connect(&server.url_as("whole", "word")).await;
    for (number, right) in rights.iter().enumerate() {
        let user = format!("poor{number}");
        let rest: Vec<_> = rights.iter().filter(|one| *one != right).cloned().collect();
        allow(server, &user, &rest);
        let reported = reported(&server.url_as(&user, "word"), &[server]).await;
        assert!(names(&reported, right), "without {right}: {reported}");
    }
    // The keys of a trial that failed expire after a second.
    eventually!(HANG, "no key of a trial is left" => server.keys("*") == [CLOCK]);
}

/// Connects, checks, and waits for a lock. Returns the error and the warnings about these servers.
async fn reported(url: &str, servers: &[&RedisServer]) -> String {
    Log::of_the_process();
    let warnings = || servers.iter().map(|server| warnings_about(server));
    let before: Vec<_> = warnings().map(|text| text.len()).collect();
    let error = match timeout(HANG, used(url)).await.expect("no hang") {
        Ok(()) => String::new(),
        Err(error) => {
            let text = format!("{error} {error:?}");
            let is_invalid = matches!(error, LockError::Invalid { .. });
            assert!(is_invalid && points_to_the_page(&text), "{text}");
            text
        }
    };
    let logged = warnings().zip(before);
    logged.fold(error, |all, (text, before)| all + &text[before..])
}

async fn used(url: &str) -> Result<(), LockError> {
    let (one, other) = (
        LockManager::connect(url).await?,
        LockManager::connect(url).await?,
    );
    one.check().await?;
    let _held = one.acquire_free("k", options()).await;
    // A waiter in a cluster subscribes to a channel of its own.
    let busy = other.acquire("k", options().wait(SECOND / 2)).await;
    assert!(busy.expect_err("held").is_busy());
    Ok(())
}

/// Returns `true` if a message says where the lines are.
fn points_to_the_page(message: &str) -> bool {
    PAGE.contains("\n## Rights\n")
        && message.contains("\"Rights\"")
        && message.contains("lock_core::guide::operations")
}

/// Returns `true` if a message names a right: in the form that grants it, or as the command in the server's or the manual's
/// spelling.
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

async fn a_revoked_right_costs_the_lock_and_leaves_none(server: &RedisServer) {
    // The commands of an acquire of a free key.
    for command in ["exists", "set", "xadd"] {
        allow(server, command, &rights_of("locks"));
        let locks = connect(&server.url_as(command, "word")).await;
        server.cli(&["ACL", "SETUSER", command, &format!("-{command}")]);
        // The ttl is so long that the key is free only after a clean-up.
        let acquire = locks.acquire("k", LockOptions::new(HANG * 10).wait(SECOND * 3));
        let refused = timeout(HANG, acquire).await.expect("no hang");
        assert_fails!(refused, LockError::Unavailable { .. });
        server.cli(&["ACL", "SETUSER", command, &format!("+{command}")]);
        eventually!(HANG, "no lock is left" => server.keys("lock:*").is_empty());
    }
}

#[tokio::test]
async fn the_listed_rights_without_scripts_suffice() {
    let server = RedisServer::start();
    allow(&server, "user", &rights_of("locks-watch"));
    let url = server.url_as("user", "word");
    let (one, other) = (connect(&url).await, connect(&url).await);
    let guard = one.acquire_free("k", LockOptions::new(SECOND)).await;
    let busy = other.acquire("k", options().wait(SECOND * 2)).await;
    assert!(busy.expect_err("it is renewed").is_busy());
    guard.lease().verify().await.expect("held");
    let waiting = tokio::spawn(async move { other.acquire_free("k", patient()).await });
    guard.release_held().await;
    let guard = waiting.await.expect("polled");
    let info = one.inspect("k").await.expect("a reply");
    assert!(info.is_some(), "held");
    one.force_release("k").await.expect("a reply");
    guard.release().await.expect_err("taken away");
    let kept = options().min_hold(SECOND * 5);
    one.acquire_free("kept", kept).await.release_held().await;
    assert!(server.pttl("lock:kept") <= Some(SECOND * 5));
    one.check().await.expect("a reply");
}

/// Returns the warnings about a server.
fn warnings_about(server: &RedisServer) -> String {
    lines_about(server, " WARN ")
}

/// Returns the lines of the log about a server at a level.
fn lines_about(server: &RedisServer, level: &str) -> String {
    let (text, address) = (
        Log::of_the_process().text(),
        format!("127.0.0.1:{}", server.port()),
    );
    let lines = text
        .lines()
        .filter(|line| line.contains(&address) && line.contains(level));
    lines.fold(String::new(), |text, line| text + line + "\n")
}

#[tokio::test]
async fn an_eviction_policy_that_threatens_locks_causes_one_warning() {
    Log::of_the_process();
    let server = RedisServer::builder()
        .setting("maxmemory", "100mb")
        .setting("maxmemory-policy", "volatile-lru")
        .start();
    let evictions = || warnings_about(&server).matches("maxmemory-policy").count();
    let locks = connect(&server.url()).await;
    let text = warnings_about(&server);
    assert!(
        text.contains("volatile-lru") && text.contains("`noeviction`"),
        "{text}"
    );
    let once = evictions();
    server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    eventually!(HANG, "it is connected again" => locks.inspect("k").await.is_ok());
    assert_eq!(evictions(), once, "not repeated on a new connection");
    let _other = connect(&server.url()).await;
    assert_eq!(evictions(), once * 2, "another manager warns again");
}

#[tokio::test]
async fn a_harmless_or_unknown_eviction_policy_causes_no_warning() {
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
        connect(&server.url()).await;
        assert_eq!(warnings_about(&server), "", "{settings:?}");
    }
    let server = RedisServer::builder()
        .setting("maxmemory", "100mb")
        .setting("maxmemory-policy", "allkeys-lru")
        .start();
    let mut rights = rights_of("locks");
    rights.retain(|right| right != "+info");
    allow(&server, "blind", &rights);
    connect(&server.url_as("blind", "word")).await;
    let logged = warnings_about(&server);
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

/// Makes one process wait for another, and checks the health.
async fn a_lock_is_handed_over(url: &str) {
    let (one, other) = (connect(url).await, connect(url).await);
    let guard = one.acquire_free("k", options()).await;
    let waiting = tokio::spawn(async move { other.acquire_free("k", patient()).await });
    eventually(HANG, "it is in the wait queue", async || {
        let info = one.inspect("k").await.expect("a reply");
        info.is_some_and(|info| info.waiters == 1)
    })
    .await;
    guard.release_held().await;
    waiting.await.expect("granted").release_held().await;
    let health = one.check().await.expect("all rights");
    assert_eq!(health.warnings, []);
}

#[tokio::test]
async fn the_row_for_a_cluster_suffices_and_each_right_in_it_is_needed() {
    let cluster = Cluster::start();
    let [row, needless] = &row_of("Cluster")[..] else {
        panic!("the row names rights to add, and rights to leave out");
    };
    let mut rights = rights_of("locks");
    rights.retain(|right| !needless.contains(right));
    rights.extend(row.iter().cloned());
    let url = |user: &str, rights: &[String]| {
        for node in cluster.nodes() {
            allow(node, user, rights);
        }
        let url = cluster.url();
        url.replace("://", &format!("://{user}:word@"))
    };
    a_lock_is_handed_over(&url("whole", &rights)).await;
    let nodes: Vec<_> = cluster.nodes().iter().collect();
    // `ASKING` is needed only while a slot moves.
    for right in row.iter().filter(|right| *right != "+asking") {
        let rest: Vec<_> = rights.iter().filter(|one| *one != right).cloned().collect();
        let user = format!("without-{}", &right[1..4]);
        let reported = reported(&url(&user, &rest), &nodes).await;
        let command = right[1..].split('|').next().expect("a word");
        assert!(reported.contains(command), "without {right}: {reported}");
    }
}

#[tokio::test]
async fn the_row_for_sentinels_suffices_and_each_right_on_them_is_needed() {
    let [row, theirs] = &row_of("Sentinel")[..] else {
        panic!("the row names rights on the servers, and on the sentinels");
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
    a_lock_is_handed_over(&url).await;
    for right in theirs.iter().filter(|right| *right != "+ping") {
        for sentinel in sentinels.sentinels() {
            sentinel.cli(&["ACL", "SETUSER", "asks", &right.replace('+', "-")]);
        }
        let failed = LockManager::connect(&url).await;
        let failed = format!("{:?}", failed.expect_err("a right is missing"));
        assert!(failed.contains("sentinel"), "without {right}: {failed}");
    }
}

#[tokio::test]
async fn another_database_needs_the_right_in_its_row() {
    let server = RedisServer::start();
    let rights = rights_of("locks");
    allow(&server, "poor", &rights);
    let [row] = &row_of("a database other than 0")[..] else {
        panic!("the row names one group of rights");
    };
    allow(&server, "whole", &[rights, row.clone()].concat());
    let url = |user: &str| server.url_as(user, "word") + "/1";
    let locks = connect(&url("whole")).await;
    let guard = locks.acquire_free("k", options()).await;
    guard.release_held().await;
    let reported = reported(&url("poor"), &[&server]).await;
    assert!(names(&reported, "+select"), "{reported}");
}

#[tokio::test]
async fn acknowledgements_need_the_right_in_their_row() {
    let (server, replica) = (RedisServer::start(), RedisServer::start());
    let port = server.port().to_string();
    replica.cli(&["REPLICAOF", "127.0.0.1", &port]);
    let rights = rights_of("locks");
    allow(&server, "poor", &rights);
    let [row] = &row_of("replicas that must have acknowledged")[..] else {
        panic!("the row names one group of rights");
    };
    allow(&server, "whole", &[rights, row.clone()].concat());
    let connect = async |user: &str| {
        let builder = LockManager::builder().min_replicas_acked(1, HANG);
        builder.connect(&server.url_as(user, "word")).await
    };
    eventually(HANG, "the replica has all data", async || {
        let state = replica.info("replication");
        state.contains("master_link_status:up")
    })
    .await;
    let locks = connect("whole").await.expect("all rights");
    let guard = locks.acquire_free("k", options()).await;
    guard.release_held().await;
    let failed = invalid(connect("poor").await);
    assert!(names(&failed, "+wait"), "{failed}");
}

#[tokio::test]
async fn independent_servers_need_the_rights_of_one_and_name_the_server_that_lacks_one() {
    let servers: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
    let connect = async |user: &str| {
        let urls = servers.iter().map(|server| server.url_as(user, "word"));
        let builder = LockManager::builder().quarantine(Duration::ZERO);
        builder.redlock(urls).await
    };
    let refused = async |user: &str, lacks: &str| {
        let failed = invalid(connect(user).await);
        assert!(names(&failed, lacks), "{failed}");
        assert!(points_to_the_page(&failed), "{failed}");
        failed
    };
    let rights = rights_of("locks");
    for server in &servers {
        allow(server, "whole", &rights);
    }
    let locks = connect("whole").await.expect("all rights");
    let guard = locks.acquire_free("k", options()).await;
    locks.force_release("k").await.expect("all rights");
    guard.release().await.expect_err("taken away");
    let health = locks.check().await.expect("all rights");
    assert_eq!(health.warnings, []);
    let rest: Vec<_> = rights.into_iter().filter(|one| one != "+info").collect();
    for server in &servers {
        allow(server, "poor", &rest);
    }
    refused("poor", "+info").await;
    servers[2].cli(&["ACL", "SETUSER", "whole", "resetkeys", "~__lock_core__:*"]);
    let failed = refused("whole", "~lock:*").await;
    assert!(failed.contains(&servers[2].port().to_string()), "{failed}");
    // Servers vote by scripts.
    for server in &servers {
        server.add_user_without_scripts();
    }
    refused("plain", "+evalsha").await;
}

/// Connects as a user with all commands, all channels, and these rights to keys.
async fn connect_with(
    server: &RedisServer,
    keys: &[&str],
    builder: LockManagerBuilder,
) -> Result<LockManager, LockError> {
    let rules = ["on", ">word", "resetkeys", "&*", "+@all"];
    server.cli(&[&["ACL", "SETUSER", "user"], &rules[..], keys].concat());
    builder.connect(&server.url_as("user", "word")).await
}

#[track_caller]
fn invalid(result: Result<impl std::fmt::Debug, LockError>) -> String {
    match result {
        Err(LockError::Invalid { reason, .. }) => reason.to_string(),
        odd => panic!("not `Invalid`: {odd:?}"),
    }
}

#[tokio::test]
async fn a_check_finds_a_revoked_right_and_leaves_no_key() {
    let server = RedisServer::start();
    let builder = LockManager::builder();
    let locks = connect_with(&server, &["~*"], builder).await;
    let locks = locks.expect("all rights");
    assert_eq!(locks.check().await.expect("all rights").warnings, []);
    let change = |rules: &[&str]| server.cli(&[&["ACL", "SETUSER", "user"], rules].concat());
    let own = "~__lock_core__:*";
    for (revoked, named, granted) in [
        (&["-zpopmin"][..], "+zpopmin ~__lock_core__:*", "+zpopmin"),
        (&["resetchannels"], "+publish &__lock_core__:grants:*", "&*"),
        (&["resetkeys", "~lock:*"], "~__lock_core__:*", "~*"),
        (&["resetkeys", own, "%R~lock:*"], "~lock:*", "~*"),
        // A selector allows keys for one command only.
        (&["resetkeys", own, "(~lock:* +get)"], "~lock:*", "~*"),
    ] {
        change(revoked);
        let refused = invalid(locks.check().await);
        assert!(refused.contains(named), "{revoked:?}: {refused}");
        assert!(points_to_the_page(&refused), "{revoked:?}: {refused}");
        change(&[granted]);
    }
    locks.check().await.expect("all rights");
    assert_eq!(
        server.keys("*"),
        [CLOCK],
        "released, and not left to expire"
    );
    let proxy = Proxy::start(server.port());
    let slow = connect(&proxy.url_as("user", "word")).await;
    proxy.lose(
        Direction::Replies,
        Frames::of("EVALSHA"),
        AfterLoss::Silence,
    );
    let check = timeout(Duration::from_millis(100), slow.check()).await;
    check.expect_err("no reply");
    eventually!(HANG, "the key of the dropped check has expired" => server.keys("*") == [CLOCK]);
}

#[tokio::test]
async fn a_check_key_represents_the_keys_that_a_user_may_use() {
    let server = RedisServer::start();
    let with = |key: &str| {
        let builder = LockManager::builder().check_key(key);
        connect_with(&server, &["~lock:order:*", "~__lock_core__:*"], builder)
    };
    let refused = invalid(with("invoice:1").await);
    assert!(points_to_the_page(&refused), "{refused}");
    let locks = with("order:1").await.expect("its own key");
    assert_eq!(locks.check().await.expect("its own key").warnings, []);
    assert_eq!(server.keys("*"), [CLOCK]);
    // The key may be busy with a lock of this library, or of another one.
    let guard = locks.acquire_free("order:1", options()).await;
    locks.check().await.expect("a busy key is not an error");
    with("order:1").await.expect("a busy key is not an error");
    guard.lease().verify().await.expect("not taken away");
    guard.release_held().await;
    server.cli(&["SET", "lock:order:1", "theirs"]);
    let locks = with("order:1").await.expect("a busy key is not an error");
    locks.check().await.expect("a busy key is not an error");
    // The rights are tested although the key is busy.
    server.cli(&["ACL", "SETUSER", "user", "resetkeys", "~__lock_core__:*"]);
    let refused = invalid(locks.check().await);
    assert!(refused.contains("~lock:*"), "{refused}");
    assert_eq!(server.get("lock:order:1").as_deref(), Some("theirs"));
}

#[tokio::test]
async fn a_check_key_that_holds_something_else_is_refused_and_left_alone() {
    let server = RedisServer::start();
    server.cli(&["RPUSH", "lock:list", "precious"]);
    let with = async |key: &str| {
        let builder = LockManager::builder().check_key(key);
        builder.connect(&server.url()).await
    };
    let says = "the check_key cannot be used: the key holds something that is not a lock";
    assert!(invalid(with("list").await).contains(says));
    let locks = with("later").await.expect("free");
    server.cli(&["RPUSH", "lock:later", "precious"]);
    assert!(invalid(locks.check().await).contains(says));
    for list in ["lock:list", "lock:later"] {
        assert_eq!(server.cli(&["LLEN", list]), redis::Value::Int(1));
    }
    // A manager in memory has no rights to check.
    let memory = LockManager::builder().check_key("").in_memory();
    memory.check().await.expect("nothing to refuse");
}

#[tokio::test]
async fn an_empty_prefix_without_a_check_key_causes_one_warning() {
    Log::of_the_process();
    let server = RedisServer::start();
    let unprefixed = || LockManager::builder().key_prefix("");
    let own = &["~__lock_core__:*"];
    let warned = || {
        warnings_about(&server)
            .matches("the key prefix is empty")
            .count()
    };
    let locks = connect_with(&server, own, unprefixed()).await;
    let health = locks.expect("a warning only").check().await;
    let [warning] = &health.expect("a warning only").warnings[..] else {
        panic!("not one warning");
    };
    assert!(warning.text.contains("check_key"), "{warning}");
    let keys = server.keys("*");
    assert!(keys.iter().all(|key| key.starts_with("__lock_core__:")));
    let checked = || unprefixed().check_key("orders");
    let refused = invalid(connect_with(&server, own, checked()).await);
    assert!(points_to_the_page(&refused), "{refused}");
    let locks = connect_with(&server, &["~orders", "~__lock_core__:*"], checked()).await;
    let health = locks.expect("its own key").check().await;
    assert_eq!(health.expect("its own key").warnings, []);
    assert_eq!(warned(), 1);
}

#[tokio::test]
async fn a_user_without_scripts_gets_one_warning_about_the_missing_queue() {
    Log::of_the_process();
    let server = RedisServer::start();
    allow(&server, "user", &rights_of("locks-watch"));
    let url = server.url_as("user", "word");
    let warned = || warnings_about(&server).matches("there is no queue").count();
    let locks = connect(&url).await;
    assert_eq!(warned(), 1);
    let health = locks.check().await.expect("enough for locks");
    let [warning] = &health.warnings[..] else {
        panic!("{health:?}");
    };
    assert_eq!(warning.topic, Topic::Rights);
    assert!(warning.text.contains("waiters poll"), "{warning}");
    assert!(points_to_the_page(&warning.text), "{warning}");
    server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    eventually!(HANG, "it is connected again" => locks.check().await.is_ok());
    assert_eq!(warned(), 1, "not repeated on a new connection");
    // If a right for locks without scripts is missing, too, the error names the right for each of the two.
    server.cli(&["ACL", "SETUSER", "user", "-watch"]);
    let reported = reported(&url, &[&server]).await;
    assert!(names(&reported, "+evalsha"), "{reported}");
    assert!(names(&reported, "+watch"), "{reported}");
}

#[tokio::test]
async fn each_node_of_a_cluster_is_tried() {
    let cluster = Cluster::start();
    let row = &row_of("Cluster")[0];
    let rights = [rights_of("locks"), row.clone()].concat();
    let url = cluster.url().replace("://", "://user:word@");
    for prefix in ["lock:", "{tag}:"] {
        let connect = || LockManager::builder().key_prefix(prefix).connect(&url);
        let pattern = format!("~{prefix}*");
        for node in cluster.nodes() {
            allow(node, "user", &rights);
            node.cli(&["ACL", "SETUSER", "user", &pattern]);
        }
        let locks = connect().await.expect("all rights");
        locks.check().await.expect("all rights");
        for node in cluster.masters() {
            // All keys of a prefix with a tag are on one node.
            if prefix.starts_with('{') && node.port() != cluster.master_of("{tag}").port() {
                continue;
            }
            node.cli(&["ACL", "SETUSER", "user", "resetkeys", "~__lock_core__:*"]);
            for refused in [invalid(connect().await), invalid(locks.check().await)] {
                assert!(refused.contains("~lock:*"), "{refused}");
                assert!(points_to_the_page(&refused), "{refused}");
                assert!(refused.contains(&format!(":{} ", node.port())), "{refused}");
            }
            node.cli(&["ACL", "SETUSER", "user", &pattern]);
            connect().await.expect("all rights");
        }
        for node in cluster.masters() {
            let left = node.keys("*");
            assert!(left.iter().all(|key| key.ends_with(":clock")), "{left:?}");
        }
    }
}

#[tokio::test]
async fn connecting_logs_the_server_once() {
    Log::of_the_process();
    let server = RedisServer::start();
    server.add_user_without_scripts();
    let logged = || {
        let text = lines_about(&server, " INFO ");
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let info = server.info("server");
    let version = info
        .lines()
        .find_map(|line| line.strip_prefix("redis_version:"));
    let version = version.expect("a version");
    let mut before = 0;
    for (url, says) in [
        (
            server.url(),
            "protocol=\"RESP3\" mode=\"push\" scripts=true",
        ),
        (
            server.url() + "?protocol=2",
            "protocol=\"RESP2\" mode=\"polling\" scripts=true",
        ),
        (
            server.url_without_scripts(),
            "protocol=\"RESP3\" mode=\"polling\" scripts=false",
        ),
    ] {
        let locks = connect(&url).await;
        let lines = logged();
        assert_eq!(lines.len(), before + 1, "{lines:?}");
        let line = &lines[before];
        let what = format!("kind=\"redis\" version=\"{version}\" {says}");
        assert!(line.contains(&what) && line.contains("connected"), "{line}");
        assert!(!line.contains("word"), "{line}");
        before += 1;
        server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        eventually!(HANG, "it is connected again" => locks.check().await.is_ok());
        assert_eq!(logged().len(), before, "not repeated on a new connection");
    }
}
