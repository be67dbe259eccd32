//! The minimal rights of a user of the server. Each right in the lines of `docs/operations.md` is needed, and a
//! missing one is named: by the error of connecting, which points to that page, or by a warning.
//! `topologies/servers.rs` runs its suite as the user of the line for scripts.

use std::time::Duration;

use lock_core::{LockError, LockManager, LockOptions};
use lock_tests::{
    AcquireFree as _, Cluster, HANG, Kind, Log, RedisServer, ReleaseHeld as _, SECOND, Sentinels,
    assert_fails, checked, connect, eventually, nothing_is_left, on_every_kind, options, patient,
    reason_of_refusal, rights_in_docs,
};
use tokio::time::timeout;

const PAGE: &str = include_str!("../../docs/operations.md");

pub(crate) const CLOCK: &str = "__lock_core__:clock";

on_every_kind! { start:
    each_right_in_the_line_for_scripts_is_needed
    each_right_in_the_line_without_scripts_is_needed
    an_acquire_that_is_refused_halfway_fails_and_leaves_no_lock
}

fn start(kind: Kind) -> RedisServer {
    RedisServer::builder().kind(kind).start()
}

async fn each_right_in_the_line_for_scripts_is_needed(server: &RedisServer) {
    each_right_is_needed(server, &rights_in_docs("locks")).await;
}

async fn each_right_in_the_line_without_scripts_is_needed(server: &RedisServer) {
    each_right_is_needed(server, &rights_in_docs("locks-watch")).await;
}

/// Withholds each right in turn. It must be named, in an error or in a warning.
async fn each_right_is_needed(server: &RedisServer, rights: &[String]) {
    server.allow("whole", rights);
    connect(&server.url_as("whole", "word")).await;
    for (number, right) in rights.iter().enumerate() {
        let user = format!("poor{number}");
        let rest: Vec<_> = rights.iter().filter(|one| *one != right).cloned().collect();
        server.allow(&user, &rest);
        let reported = reported(&server.url_as(&user, "word"), &[server]).await;
        assert!(names(&reported, right), "without {right}: {reported}");
    }
    // The keys of a trial that failed expire after a second.
    eventually!(HANG, "no key of a trial is left" => server.keys("*") == [CLOCK]);
}

/// Connects, checks, and waits for a lock. Returns the error and the warnings about these servers.
pub(crate) async fn reported(url: &str, servers: &[&RedisServer]) -> String {
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

/// Returns the warnings about a server.
pub(crate) fn warnings_about(server: &RedisServer) -> String {
    Log::of_the_process().lines_about(server, "WARN")
}

/// Returns `true` if a message says where the lines are.
pub(crate) fn points_to_the_page(message: &str) -> bool {
    PAGE.contains("\n## Rights\n")
        && message.contains("\"Rights\"")
        && message.contains("lock_core::guide::operations")
}

/// Returns `true` if a message names a right: in the form that grants it, or as the command in the server's or the manual's
/// spelling.
pub(crate) fn names(reported: &str, right: &str) -> bool {
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

async fn an_acquire_that_is_refused_halfway_fails_and_leaves_no_lock(server: &RedisServer) {
    // The commands of an acquire of a free key.
    for command in ["exists", "set", "xadd"] {
        server.allow(command, &rights_in_docs("locks"));
        let locks = connect(&server.url_as(command, "word")).await;
        server.cli(&["ACL", "SETUSER", command, &format!("-{command}")]);
        // The ttl is so long that the key is free only after a clean-up.
        let acquire = locks.acquire("k", LockOptions::new(HANG * 10).wait(SECOND * 3));
        let refused = timeout(HANG, acquire).await.expect("no hang");
        assert_fails!(refused, LockError::Unavailable { .. });
        server.cli(&["ACL", "SETUSER", command, &format!("+{command}")]);
        nothing_is_left(server).await;
    }
}

#[tokio::test]
async fn the_listed_rights_without_scripts_suffice() {
    let server = RedisServer::start();
    server.allow("user", &rights_in_docs("locks-watch"));
    let url = server.url_as("user", "word");
    let (one, other) = (connect(&url).await, connect(&url).await);
    let guard = one.acquire_free("k", options()).await;
    let mut before = server.pttl("lock:k");
    eventually(HANG, "it is renewed", async || {
        let left = server.pttl("lock:k");
        let is_renewed = left.expect("held") > before.expect("held");
        before = left;
        is_renewed
    })
    .await;
    assert!(
        other
            .try_acquire("k", options())
            .await
            .expect("a reply")
            .is_none()
    );
    guard.lease().verify().await.expect("held");
    let waiting = tokio::spawn(async move { other.acquire_free("k", patient()).await });
    guard.release_held().await;
    let guard = waiting.await.expect("polled");
    let info = one.inspect("k").await.expect("a reply");
    assert!(info.is_some(), "held");
    one.force_release("k").await.expect("a reply");
    guard.release().await.expect_err("taken away");
    let kept = options().min_hold(HANG);
    one.acquire_free("kept", kept).await.release_held().await;
    let left = server.pttl("lock:kept").expect("kept");
    assert!(SECOND * 20 < left && left <= HANG, "{left:?}");
    one.check().await.expect("a reply");
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
    let health = checked(&one).await;
    assert_eq!(health.warnings, []);
}

#[tokio::test]
async fn the_row_for_a_cluster_suffices_and_each_right_in_it_is_needed() {
    let cluster = Cluster::start();
    let [row, needless] = &row_of("Cluster")[..] else {
        panic!("the row names rights to add, and rights to leave out");
    };
    let mut rights = rights_in_docs("locks");
    rights.retain(|right| !needless.contains(right));
    rights.extend(row.iter().cloned());
    let url = |user: &str, rights: &[String]| {
        for node in cluster.nodes() {
            node.allow(user, rights);
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
        assert!(names(&reported, right), "without {right}: {reported}");
    }
}

/// Without `+role` on the servers and `+ping` on the sentinels, only a fail-over and a lost reply would take longer to notice.
#[tokio::test]
async fn the_row_for_sentinels_suffices_and_asking_for_the_primary_needs_its_right() {
    let [row, theirs] = &row_of("Sentinel")[..] else {
        panic!("the row names rights on the servers, and on the sentinels");
    };
    let rights = [rights_in_docs("locks"), row.clone()].concat().join(" ");
    let builder = Sentinels::builder().user("locks", "word", &format!("resetchannels {rights}"));
    let sentinels = builder.start();
    for sentinel in sentinels.sentinels() {
        sentinel.allow("asks", theirs);
    }
    let url = format!(
        "{}?sentinel_user=asks&sentinel_password=word",
        sentinels.url()
    );
    a_lock_is_handed_over(&url).await;
    for sentinel in sentinels.sentinels() {
        sentinel.cli(&["ACL", "SETUSER", "asks", "-sentinel|master"]);
    }
    let failed = reason_of_refusal(LockManager::connect(&url).await);
    assert!(names(&failed, "+sentinel|master"), "{failed}");
}

#[tokio::test]
async fn another_database_needs_the_right_in_its_row() {
    let server = RedisServer::start();
    let rights = rights_in_docs("locks");
    server.allow("poor", &rights);
    let [row] = &row_of("a database other than 0")[..] else {
        panic!("the row names one group of rights");
    };
    server.allow("whole", &[rights, row.clone()].concat());
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
    let rights = rights_in_docs("locks");
    server.allow("poor", &rights);
    let [row] = &row_of("replicas that must have acknowledged")[..] else {
        panic!("the row names one group of rights");
    };
    server.allow("whole", &[rights, row.clone()].concat());
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
    let failed = reason_of_refusal(connect("poor").await);
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
        let failed = reason_of_refusal(connect(user).await);
        assert!(names(&failed, lacks), "{failed}");
        assert!(points_to_the_page(&failed), "{failed}");
        failed
    };
    let rights = rights_in_docs("locks");
    for server in &servers {
        server.allow("whole", &rights);
    }
    let locks = connect("whole").await.expect("all rights");
    let guard = locks.acquire_free("k", options()).await;
    locks.force_release("k").await.expect("all rights");
    guard.release().await.expect_err("taken away");
    let health = checked(&locks).await;
    assert_eq!(health.warnings, []);
    let rest: Vec<_> = rights.into_iter().filter(|one| one != "+info").collect();
    for server in &servers {
        server.allow("poor", &rest);
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

#[tokio::test]
async fn each_node_of_a_cluster_is_tried() {
    let cluster = Cluster::start();
    let row = &row_of("Cluster")[0];
    let rights = [rights_in_docs("locks"), row.clone()].concat();
    let url = cluster.url().replace("://", "://user:word@");
    for prefix in ["lock:", "{tag}:"] {
        let connect = || LockManager::builder().key_prefix(prefix).connect(&url);
        let pattern = format!("~{prefix}*");
        for node in cluster.nodes() {
            node.allow("user", &rights);
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
            for refused in [
                reason_of_refusal(connect().await),
                reason_of_refusal(locks.check().await),
            ] {
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
