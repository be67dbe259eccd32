//! The special cases of sentinels: the primary that they name, the sentinel that is believed, and their cost.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use lock_core::{LockError, LockGuard, LockManager, LockOptions};
use lock_tests::{
    AcquireFree as _, Direction, FakeServer, HANG, Proxy, RedisServer, ReleaseHeld as _, Reply,
    SECOND, Scope, Sentinels, assert_fails, connect, eventually,
};
use tokio::time::timeout;

/// The time within which managers have to leave a primary that was replaced.
const SOON: Duration = Duration::from_secs(30);

fn options() -> LockOptions {
    LockOptions::new(SECOND * 30).wait(HANG)
}

/// A fake sentinel that names the primary that a test chooses.
pub(super) struct Puppet {
    server: FakeServer,
    names: Arc<Mutex<(u16, u64)>>,
    asked: Arc<AtomicU64>,
}

impl Puppet {
    pub(super) fn naming(primary: &RedisServer, epoch: u64) -> Self {
        let names = Arc::new(Mutex::new((primary.port(), epoch)));
        let asked = Arc::<AtomicU64>::default();
        let (shown, counted) = (names.clone(), asked.clone());
        let server = FakeServer::start(move |words| match words[0].as_str() {
            "SENTINEL" => {
                counted.fetch_add(1, Ordering::Relaxed);
                let (port, epoch) = *shown.lock().expect("no panic");
                let (port, epoch) = (port.to_string(), epoch.to_string());
                let words = ["ip", "127.0.0.1", "port", &port, "config-epoch", &epoch];
                let bulk = |word: &&str| format!("${}\r\n{word}\r\n", word.len());
                let words: String = words.iter().map(bulk).collect();
                Reply::Bytes(format!("*6\r\n{words}").into_bytes())
            }
            _ => Reply::line("-ERR unknown command"),
        });
        Self {
            server,
            names,
            asked,
        }
    }

    pub(super) fn port(&self) -> u16 {
        self.server.port()
    }

    fn name(&self, primary: &RedisServer, epoch: u64) {
        *self.names.lock().expect("no panic") = (primary.port(), epoch);
    }

    fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }
}

fn url_of(puppets: &[&Puppet], credentials: &str) -> String {
    let hosts: Vec<String> = puppets
        .iter()
        .map(|puppet| format!("127.0.0.1:{}", puppet.server.port()))
        .collect();
    format!("redis+sentinel://{credentials}{}/locks", hosts.join(","))
}

/// Waits until locks are taken at `primary`, one after the other.
async fn locks_are_taken_at(primary: &RedisServer, locks: &LockManager) {
    eventually(SOON, "locks are taken at the new primary", async || {
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
async fn every_connection_leaves_a_primary_that_only_we_can_reach() {
    let (old, new) = (without_scripts(), without_scripts());
    let puppet = Puppet::naming(&old, 1);
    let locks = connect(&url_of(&[&puppet], "plain:word@")).await;
    // After this, the connection for transactions is open.
    let first = locks.acquire_free("k", options()).await;
    first.release_held().await;
    puppet.name(&new, 2);
    locks_are_taken_at(&new, &locks).await;
    let guard = locks.acquire_free("k", options()).await;
    assert!(new.get("lock:k").is_some());
    guard.release_held().await;
    assert_eq!(new.get("lock:k"), None);
}

#[tokio::test]
async fn where_replicas_are_waited_for_every_connection_leaves_it_too() {
    let (old, new) = (RedisServer::start(), RedisServer::start());
    let replicas = [&old, &new].map(|server| {
        let replica = RedisServer::start();
        replica.cli(&["REPLICAOF", "127.0.0.1", &server.port().to_string()]);
        replica
    });
    for server in [&old, &new] {
        eventually(HANG, "its replica is there", async || {
            server.info("replication").contains("state=online")
        })
        .await;
    }
    let puppet = Puppet::naming(&old, 1);
    let locks = LockManager::builder()
        .min_replicas_acked(1, SECOND * 5)
        .connect(&url_of(&[&puppet], ""))
        .await
        .expect("up");
    let first = locks.acquire_free("k", options()).await;
    first.release_held().await;
    puppet.name(&new, 2);
    locks_are_taken_at(&new, &locks).await;
    drop(replicas);
}

#[tokio::test]
async fn a_sentinel_that_is_behind_does_not_lead_back() {
    let (old, new) = (RedisServer::start(), RedisServer::start());
    let (behind, ahead) = (Puppet::naming(&old, 1), Puppet::naming(&old, 1));
    let locks = connect(&url_of(&[&behind, &ahead], "")).await;
    ahead.name(&new, 2);
    locks_are_taken_at(&new, &locks).await;
    // Only the sentinel that is behind is left, and the connections break: that for requests, and that of the manager's thread.
    drop(ahead);
    new.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    new.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    let refused = locks.acquire("k", options().wait(SECOND * 3)).await;
    assert_fails!(refused, LockError::Unavailable { .. });
    assert_eq!(old.get("lock:k"), None);
    // The sentinel learns of the new primary.
    behind.name(&new, 2);
    let guard = locks.acquire_free("k", options()).await;
    assert!(new.get("lock:k").is_some());
    guard.release_held().await;
}

/// A choice is made when two of three have replied. Only the third one knows of the fail-over.
#[tokio::test]
async fn a_reply_that_comes_after_the_choice_leads_to_the_new_primary() {
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
    locks_are_taken_at(&new, &locks).await;
}

#[tokio::test]
async fn sentinels_that_were_set_up_anew_are_believed() {
    let (old, new) = (RedisServer::start(), RedisServer::start());
    let puppets = [
        Puppet::naming(&old, 7),
        Puppet::naming(&old, 7),
        Puppet::naming(&old, 7),
    ];
    let url = url_of(&[&puppets[0], &puppets[1], &puppets[2]], "");
    let locks = connect(&url).await;
    for puppet in &puppets[..2] {
        puppet.name(&new, 0);
    }
    let [_, _, last] = puppets.each_ref();
    assert!(last.asked() > 0);
    let [first, second, third] = puppets;
    drop(third);
    old.kill9();
    let guard = locks.acquire_free("k", options()).await;
    assert!(new.get("lock:k").is_some());
    guard.release_held().await;
    drop((first, second));
}

#[tokio::test]
async fn one_live_sentinel_is_enough_and_none_is_needed_once_connected() {
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
    eventually(HANG, "two ttls are over", async || Instant::now() > end).await;
    guard.lease().verify().await.expect("held");
    guard.release_held().await;
    let next = granted(waiting).await;
    next.release_held().await;
    stopped.cont();
}

type Waiting = tokio::task::JoinHandle<Result<LockGuard, LockError>>;

async fn granted(waiting: Waiting) -> LockGuard {
    let granted = timeout(HANG, waiting)
        .await
        .expect("no missed wake-up")
        .expect("no panic");
    granted.expect("granted")
}

#[tokio::test]
async fn what_is_wrong_with_a_url_is_said_without_its_secrets() {
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

#[tokio::test]
async fn a_plain_server_is_no_sentinel_and_the_error_says_so() {
    let server = RedisServer::start();
    let url = format!("redis+sentinel://127.0.0.1:{}/locks", server.port());
    let refused = timeout(HANG, LockManager::connect(&url)).await;
    let error = refused.expect("at once").expect_err("no sentinel");
    assert!(matches!(error, LockError::Invalid { .. }), "{error:?}");
    let says = format!("127.0.0.1:{} is not a sentinel", server.port());
    assert!(error.to_string().contains(&says), "{error}");
}

/// The number of processes that are subscribed to grants on a server.
fn listeners(server: &RedisServer) -> usize {
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
        // The sentinels give the fail-over up if a server is slow, and do not begin again by themselves.
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
    // The first primary does not become a replica for a while, and would still grant locks.
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
async fn while_everything_is_down_the_sentinels_get_few_requests() {
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
    proxy.lead_to(gone.port());
    gone.kill9();
    proxy.reset();
    let waiting: Vec<Waiting> = (0..50)
        .map(|number| {
            let (locks, key) = (locks.clone(), format!("wanted{number}"));
            tokio::spawn(async move { locks.acquire(key, options()).await })
        })
        .collect();
    let (before, started) = (proxy.connections(), Instant::now());
    eventually!(HANG, "some time has passed" => started.elapsed() > SECOND * 3);
    let connections = u128::from(proxy.connections() - before);
    // At most one in fifty milliseconds.
    let most = started.elapsed().as_millis() / 50 + 20;
    assert!(
        (1..=most).contains(&connections),
        "{connections}, and not {most} at most"
    );
    proxy.lead_to(puppet.server.port());
    primary.restart();
    for waiting in waiting {
        granted(waiting).await.release_held().await;
    }
}
