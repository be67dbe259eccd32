//! The special cases of sentinels: which of them is believed, and how managers leave a primary that was replaced.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use lock_core::{LockError, LockManager, LockOptions};
use lock_tests::{
    AcquireFree as _, Direction, FakeServer, HANG, Proxy, RedisServer, ReleaseHeld as _, Reply,
    SECOND, Scope, Sentinels, assert_fails, connect, eventually, granted,
};
use tokio::time::timeout;

use crate::waiters::many_wait_in_an_outage;

/// The time within which managers must leave a primary that was replaced.
const SOON: Duration = Duration::from_secs(30);

fn options() -> LockOptions {
    LockOptions::new(SECOND * 30).wait(HANG)
}

/// A fake sentinel, which names the primary that a test chooses.
pub(super) struct Puppet {
    server: FakeServer,
    names: Arc<Mutex<(u16, u64)>>,
}

impl Puppet {
    pub(super) fn naming(primary: &RedisServer, epoch: u64) -> Self {
        let names = Arc::new(Mutex::new((primary.port(), epoch)));
        let shown = names.clone();
        let server = FakeServer::start(move |words| match words[0].as_str() {
            "SENTINEL" => {
                let (port, epoch) = *shown.lock().expect("no panic");
                let (port, epoch) = (port.to_string(), epoch.to_string());
                let words = ["ip", "127.0.0.1", "port", &port, "config-epoch", &epoch];
                let bulk = |word: &&str| format!("${}\r\n{word}\r\n", word.len());
                let words: String = words.iter().map(bulk).collect();
                Reply::Bytes(format!("*6\r\n{words}").into_bytes())
            }
            _ => Reply::line("-ERR unknown command"),
        });
        Self { server, names }
    }

    pub(super) fn port(&self) -> u16 {
        self.server.port()
    }

    fn name(&self, primary: &RedisServer, epoch: u64) {
        *self.names.lock().expect("no panic") = (primary.port(), epoch);
    }
}

fn url_of(puppets: &[&Puppet], credentials: &str) -> String {
    let hosts: Vec<String> = puppets
        .iter()
        .map(|puppet| format!("127.0.0.1:{}", puppet.server.port()))
        .collect();
    format!("redis+sentinel://{credentials}{}/locks", hosts.join(","))
}

/// Waits until locks are acquired on `primary`.
async fn locks_are_acquired_on(primary: &RedisServer, locks: &LockManager) {
    eventually(SOON, "locks are acquired on the new primary", async || {
        let Ok(guard) = locks.acquire("moved", options()).await else {
            return false;
        };
        let there = primary.get("lock:moved").is_some();
        guard.release().await.ok();
        there
    })
    .await;
}

fn without_scripts() -> RedisServer {
    RedisServer::builder()
        .acl("user default off")
        .acl("user plain on >word ~* &* +@all -@scripting")
        .start()
}

#[tokio::test]
async fn every_connection_leaves_a_primary_that_sentinels_cannot_reach() {
    let (old, new) = (without_scripts(), without_scripts());
    let puppet = Puppet::naming(&old, 1);
    let locks = connect(&url_of(&[&puppet], "plain:word@")).await;
    // Opens the connection for transactions.
    let first = locks.acquire_free("k", options()).await;
    first.release_held().await;
    puppet.name(&new, 2);
    locks_are_acquired_on(&new, &locks).await;
    let guard = locks.acquire_free("k", options()).await;
    assert!(new.get("lock:k").is_some());
    guard.release_held().await;
    assert_eq!(new.get("lock:k"), None);
}

#[tokio::test]
async fn the_connection_of_acknowledged_locks_leaves_a_replaced_primary_too() {
    let (old, new) = (RedisServer::start(), RedisServer::start());
    let replicas = [&old, &new].map(|server| {
        let replica = RedisServer::start();
        replica.cli(&["REPLICAOF", "127.0.0.1", &server.port().to_string()]);
        replica
    });
    for server in [&old, &new] {
        let is_online = || server.info("replication").contains("state=online");
        eventually!(HANG, "its replica is online" => is_online());
    }
    let puppet = Puppet::naming(&old, 1);
    let locks = LockManager::builder().min_replicas_acked(1, SECOND * 5);
    let locks = locks.connect(&url_of(&[&puppet], "")).await.expect("up");
    let first = locks.acquire_free("k", options()).await;
    first.release_held().await;
    puppet.name(&new, 2);
    locks_are_acquired_on(&new, &locks).await;
    drop(replicas);
}

#[tokio::test]
async fn a_stale_sentinel_does_not_cause_a_switch_back() {
    let (old, new) = (RedisServer::start(), RedisServer::start());
    let (stale, current) = (Puppet::naming(&old, 1), Puppet::naming(&old, 1));
    let locks = connect(&url_of(&[&stale, &current], "")).await;
    current.name(&new, 2);
    locks_are_acquired_on(&new, &locks).await;
    // Only the stale sentinel is left, and the connections for requests and of the manager's thread break.
    drop(current);
    new.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    new.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    let refused = locks.acquire("k", options().wait(SECOND * 3)).await;
    assert_fails!(refused, LockError::Unavailable { .. });
    assert_eq!(old.get("lock:k"), None);
    // The sentinel learns of the new primary.
    stale.name(&new, 2);
    let guard = locks.acquire_free("k", options()).await;
    assert!(new.get("lock:k").is_some());
    guard.release_held().await;
}

/// A primary is chosen when two of three sentinels have replied. Only the third one knows of the fail-over.
#[tokio::test]
async fn a_reply_that_arrives_after_the_choice_leads_to_the_new_primary() {
    let (old, new) = (RedisServer::start(), RedisServer::start());
    let puppets = [(); 3].map(|()| Puppet::naming(&old, 1));
    let slow = Proxy::start(puppets[2].port());
    slow.delay(Direction::Replies, Duration::from_millis(400));
    let hosts = [puppets[0].port(), puppets[1].port(), slow.port()];
    let hosts = hosts.map(|port| format!("127.0.0.1:{port}")).join(",");
    let locks = connect(&format!("redis+sentinel://{hosts}/locks")).await;
    let first = locks.acquire_free("k", options()).await;
    assert!(old.get("lock:k").is_some());
    first.release_held().await;
    puppets[2].name(&new, 2);
    locks_are_acquired_on(&new, &locks).await;
}

#[tokio::test]
async fn one_sentinel_is_enough_to_connect_and_none_is_needed_afterwards() {
    let sentinels = Sentinels::start();
    let [dead, stopped, live] = sentinels.sentinels() else {
        panic!("three sentinels")
    };
    let hole = Proxy::start(live.port());
    hole.black_hole(Scope::All);
    dead.kill9();
    stopped.stop();
    let port = hole.port();
    let url = sentinels
        .url()
        .replace("sentinel://", &format!("sentinel://127.0.0.1:{port},"));
    let (one, other) = (connect(&url).await, connect(&url).await);
    let short = LockOptions::new(SECOND * 4);
    let guard = one.acquire_free("k", short).await;
    live.kill9();
    let waiting = tokio::spawn(async move { other.acquire("k", options()).await });
    let end = Instant::now() + SECOND * 8;
    eventually!(HANG, "two ttls are over" => Instant::now() > end);
    guard.lease().verify().await.expect("held");
    guard.release_held().await;
    let next = granted(waiting).await;
    next.release_held().await;
    stopped.cont();
}

#[tokio::test]
async fn an_error_about_a_url_contains_no_secret() {
    let sentinels = Sentinels::builder()
        .password("s3cret")
        .sentinel_password("w4tch")
        .start();
    let good = sentinels.url();
    connect(&good).await;
    let service = format!("/{}?", sentinels.service());
    for (right, wrong, reason) in [
        (&*service, "/others?", "knows no primary named `others`"),
        ("=w4tch", "=hunter2", "refuses the user or password"),
        (
            "?sentinel_password=w4tch",
            "",
            "refuses the user or password",
        ),
        (":s3cret@", ":hunter2@", "refuses the user or password"),
        (":s3cret@", "", "refuses the user or password"),
    ] {
        let url = good.replace(right, wrong);
        assert_ne!(url, good);
        let refused = timeout(HANG, LockManager::connect(&url)).await;
        let error = refused.expect("at once").expect_err(wrong);
        let text = format!("{error} {error:?}");
        assert!(
            matches!(error, LockError::Invalid { .. }),
            "{wrong}: {text}"
        );
        assert!(text.contains(reason), "{wrong}: {text}");
        for secret in ["hunter2", "s3cret", "w4tch"] {
            assert!(!text.contains(secret), "{wrong}: {text}");
        }
    }
}

/// Returns the number of managers that are subscribed to grants on a server.
pub(super) fn listeners(server: &RedisServer) -> usize {
    let channels = server.cli(&["PUBSUB", "CHANNELS", "__lock_core__:grants:*"]);
    let channels: Vec<String> = redis::from_redis_value(channels).expect("names");
    channels.len()
}

#[tokio::test]
async fn a_planned_fail_over_loses_no_waiter() {
    let sentinels = Sentinels::start();
    let first = sentinels.primary();
    let (one, other) = (
        connect(&sentinels.url()).await,
        connect(&sentinels.url()).await,
    );
    let held = one.acquire_free("held", options()).await;
    let guard = one.acquire_free("k", options()).await;
    let waiting = tokio::spawn(async move { other.acquire("k", options()).await });
    let queue = "__lock_core__:waiters:lock:k";
    eventually(HANG, "all of it is replicated", async || {
        sentinels
            .servers()
            .iter()
            .all(|server| server.keys("*").iter().any(|key| key == queue))
    })
    .await;
    let [sentinel, ..] = sentinels.sentinels() else {
        panic!("three sentinels")
    };
    let mut asked: Option<Instant> = None;
    eventually(HANG, "another server is the primary", async || {
        // The sentinels abandon the fail-over if a server is slow, and do not try again by themselves.
        if asked.is_none_or(|asked| asked.elapsed() > SECOND * 5) {
            let reply = sentinel.try_cli(&["SENTINEL", "FAILOVER", sentinels.service()]);
            asked = reply.is_ok().then(Instant::now).or(asked);
        }
        sentinels.primary().port() != first.port()
    })
    .await;
    sentinels.failed_over(first);
    let before = u64::from(guard.lease().fencing_token());
    let second = sentinels.primary();
    // For a while, the first primary is not demoted, and would still grant locks.
    eventually!(SOON, "both processes have left the first one" => listeners(second) == 2);
    guard.lease().verify().await.expect("held");
    guard.release_held().await;
    let next = granted(waiting).await;
    assert!(u64::from(next.lease().fencing_token()) > before);
    next.lease().verify().await.expect("held");
    held.lease().verify().await.expect("held");
    held.release_held().await;
    next.release_held().await;
    assert_eq!(second.keys("lock:*"), [""; 0]);
}

#[tokio::test]
async fn sentinels_get_few_requests_while_the_primary_is_down() {
    let servers = [RedisServer::start(), RedisServer::start()];
    let [primary, gone] = &servers;
    let puppet = Puppet::naming(primary, 1);
    let proxy = Proxy::start(puppet.server.port());
    let url = format!("redis+sentinel://127.0.0.1:{}/locks", proxy.port());
    let locks = connect(&url).await;
    let mut guards = Vec::new();
    for number in 0..50 {
        let key = format!("held{number}");
        guards.push(locks.acquire_free(key, options()).await);
    }
    primary.kill9();
    proxy.redirect_to(gone.port());
    gone.kill9();
    proxy.reset();
    let waiting = many_wait_in_an_outage(&locks, &proxy, Duration::from_millis(50)).await;
    proxy.redirect_to(puppet.server.port());
    primary.restart();
    for waiting in waiting {
        granted(waiting).await.release_held().await;
    }
}
