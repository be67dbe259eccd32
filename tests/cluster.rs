//! What is special about a cluster: keys in slots, slots that move, nodes that come and go. A manager stands for a process.

use std::{
    sync::{Arc, Mutex, PoisonError, Weak},
    time::{Duration, Instant},
};

use lock_core::{LeaseLost, LockError, LockGuard, LockManager, LockOptions};
use lock_tests::{Cluster, RedisServer, eventually, slot_of, tag_of_slot};
use redis::Value;
use tokio::{task::JoinHandle, time::timeout};

const HANG: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);

/// Three masters without replicas, for all tests that run at the same time and leave them as they are. They end with the last
/// of those tests.
fn shared() -> Arc<Cluster> {
    static SHARED: Mutex<Weak<Cluster>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    shared.upgrade().unwrap_or_else(|| {
        let cluster = Arc::new(alone());
        *shared = Arc::downgrade(&cluster);
        cluster
    })
}

fn alone() -> Cluster {
    Cluster::builder().masters_alone(3).start()
}

fn options() -> LockOptions {
    LockOptions::new(SECOND * 10).wait(HANG)
}

async fn connect(url: &str) -> LockManager {
    LockManager::connect(url).await.expect("the nodes are up")
}

/// So many keys whose locks are on one node.
fn keys_of(cluster: &Cluster, node: &RedisServer, front: &str, count: usize) -> Vec<String> {
    let keys = (0..).map(|number| format!("{front}{number}"));
    keys.filter(|key| cluster.node_of(&format!("lock:{key}")).port() == node.port())
        .take(count)
        .collect()
}

fn queue_of(key: &str) -> String {
    let tag = tag_of_slot(slot_of(&format!("lock:{key}")));
    format!("__lock_core__:{{{tag}}}:queue:lock:{key}")
}

fn fence_of(key: &str) -> String {
    let tag = tag_of_slot(slot_of(&format!("lock:{key}")));
    format!("__lock_core__:{{{tag}}}:fence")
}

/// How many processes wait, by a node that answers for the slot.
fn queue_length(node: &RedisServer, key: &str) -> usize {
    match node.try_cli(&["LRANGE", &queue_of(key), "0", "-1"]) {
        Ok(Value::Array(entries)) => entries
            .iter()
            .filter(|entry| **entry != Value::BulkString(Vec::new()))
            .count(),
        _ => 0,
    }
}

type Waiting = JoinHandle<Result<LockGuard, LockError>>;

/// Has a manager wait for a key; it stands in the queue when this returns.
async fn in_line(cluster: &Cluster, locks: &LockManager, key: &str) -> Waiting {
    let node = cluster.node_of(&format!("lock:{key}"));
    let before = queue_length(node, key);
    let (locks, own) = (locks.clone(), key.to_owned());
    let waiting = tokio::spawn(async move { locks.acquire(own, options()).await });
    eventually(HANG, "it stands in line", async || {
        queue_length(node, key) > before
    })
    .await;
    waiting
}

async fn granted(waiting: Waiting) -> LockGuard {
    let granted = timeout(HANG, waiting)
        .await
        .expect("no missed wake-up")
        .expect("no panic");
    granted.expect("granted")
}

fn fencing_token(guard: &LockGuard) -> u64 {
    guard.lease().fencing_token().into()
}

fn another(cluster: &Cluster, node: &RedisServer) -> u16 {
    let masters = cluster.masters();
    let other = masters.iter().find(|other| other.port() != node.port());
    other.expect("there are three").port()
}

fn node_at(cluster: &Cluster, port: u16) -> &RedisServer {
    let mut nodes = cluster.nodes().iter();
    nodes.find(|node| node.port() == port).expect("one of ours")
}

#[tokio::test]
async fn a_node_that_does_not_answer_costs_no_lease_of_another() {
    let cluster = alone();
    for node in cluster.nodes() {
        node.cli(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    let masters = cluster.masters();
    let locks = connect(&cluster.url()).await;
    let short = LockOptions::new(SECOND * 2);
    let mut lost = Vec::new();
    for key in keys_of(&cluster, masters[0], "lost", 40) {
        lost.push(locks.acquire(key, short.clone()).await.expect("free"));
    }
    let mut kept = Vec::new();
    for key in keys_of(&cluster, masters[1], "kept", 3) {
        kept.push(locks.acquire(key, short.clone()).await.expect("free"));
    }
    masters[0].stop();
    for guard in &lost {
        let reason = timeout(HANG, guard.lease().lost()).await.expect("noticed");
        assert_eq!(reason, LeaseLost::Expired);
    }
    let end = Instant::now() + SECOND * 4;
    eventually(HANG, "two more ttls are over", async || {
        Instant::now() > end
    })
    .await;
    for guard in kept {
        guard.lease().verify().await.expect("held");
        guard.release().await.expect("held");
    }
    masters[0].cont();
}

#[tokio::test]
async fn in_the_second_version_of_the_protocol_waiters_ask_again_and_again() {
    let cluster = shared();
    let url = format!("{}?protocol=2", cluster.url());
    let (one, other) = (connect(&url).await, connect(&url).await);
    let guard = one.acquire("resp2", options()).await.expect("free");
    let waiting = tokio::spawn(async move { other.acquire("resp2", options()).await });
    let node = cluster.node_of("lock:resp2");
    let before = node.calls("evalsha");
    eventually(HANG, "it asks", async || node.calls("evalsha") > before + 3).await;
    let first = fencing_token(&guard);
    guard.release().await.expect("held");
    let next = granted(waiting).await;
    assert!(fencing_token(&next) > first);
    next.release().await.expect("held");
}

#[tokio::test]
async fn users_without_scripts_keep_many_leases_in_many_slots() {
    let cluster = Cluster::builder()
        .masters_alone(3)
        .acl("user default off")
        .acl("user plain on >word ~* &* +@all -@scripting")
        .start();
    let url = cluster.url_as("plain", "word");
    let (one, other) = (connect(&url).await, connect(&url).await);
    let short = LockOptions::new(SECOND);
    let mut guards = Vec::new();
    for number in 0..60 {
        let key = format!("plain{number}");
        guards.push(one.acquire(key, short.clone()).await.expect("free"));
    }
    let waiting = tokio::spawn(async move { other.acquire("plain0", options()).await });
    let end = Instant::now() + SECOND * 3;
    eventually(HANG, "three ttls are over", async || Instant::now() > end).await;
    for guard in guards {
        guard.lease().verify().await.expect("held");
        guard.release().await.expect("held");
    }
    granted(waiting).await.release().await.expect("held");
    for node in cluster.nodes() {
        assert!(node.keys("lock:*").is_empty());
        assert_eq!(node.calls("evalsha"), 0);
    }
}

#[tokio::test]
async fn every_key_has_its_companions_in_its_slot() {
    let cluster = shared();
    let (one, other) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
    for key in [
        "a{b}c", "{}x", "{", "}", "}{", "{{a}}", "{a}{b}", "ü{ö}", "a b", " ", "%7B", "键",
    ] {
        let full_key = format!("lock:{key}");
        let node = cluster.node_of(&full_key);
        let guard = one.acquire(key, options()).await.expect(key);
        let waiting = in_line(&cluster, &other, key).await;
        let slot = |name: &str| node.cli(&["CLUSTER", "KEYSLOT", name]);
        for companion in [queue_of(key), fence_of(key)] {
            assert_eq!(slot(&companion), slot(&full_key), "{companion}");
            assert_eq!(
                node.cli(&["EXISTS", &companion]),
                Value::Int(1),
                "{companion}"
            );
        }
        assert!(node.get(&full_key).is_some(), "{key}");
        let before = fencing_token(&guard);
        guard.release().await.expect("held");
        let next = granted(waiting).await;
        assert!(fencing_token(&next) > before, "{key}");
        next.release().await.expect("held");
        assert_eq!(node.get(&full_key), None, "{key}");
    }
}

#[tokio::test]
async fn any_key_can_be_locked() {
    let cluster = shared();
    let locks = connect(&cluster.url()).await;
    let mut state = u64::from(std::process::id());
    let mut random = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        usize::try_from(state >> 33).expect("31 bits")
    };
    let alphabet = ['{', '}', 'a', 'b', ':', '%', ' ', 'ö'];
    let mut tasks = Vec::new();
    for number in 0..500 {
        let length = 1 + random() % 12;
        let letters = (0..length).map(|_| alphabet[random() % alphabet.len()]);
        let key = format!("{}{number}", letters.collect::<String>());
        let locks = locks.clone();
        tasks.push(tokio::spawn(async move {
            let guard = locks.acquire(&*key, options()).await.expect(&key);
            guard.lease().verify().await.expect(&key);
            guard.release().await.expect(&key);
        }));
    }
    for task in tasks {
        timeout(HANG, task)
            .await
            .expect("no hang")
            .expect("no panic");
    }
}

#[tokio::test]
async fn a_waiter_is_told_and_does_not_ask_again_and_again() {
    let cluster = Cluster::builder().masters_alone(1).start();
    let [node] = cluster.nodes() else {
        panic!("one node")
    };
    let (one, other) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
    let guard = one.acquire("k", options()).await.expect("free");
    let waiting = in_line(&cluster, &other, "k").await;
    let (asked, started) = (node.calls("evalsha"), Instant::now());
    eventually(HANG, "it shows that it is alive", async || {
        node.calls("evalsha") >= asked + 3
    })
    .await;
    let took = started.elapsed();
    assert!(took > SECOND, "three questions in {took:?}");
    let (asked, told) = (node.calls("evalsha"), node.calls("spublish"));
    let renewals = 1;
    guard.release().await.expect("held");
    let next = granted(waiting).await;
    assert_eq!(node.calls("spublish"), told + 1);
    // The release, and a beat or a renewal that came in between.
    let questions = node.calls("evalsha") - asked;
    assert!(questions <= 2 + renewals, "{questions}");
    next.release().await.expect("held");
}

#[tokio::test]
async fn several_keys_and_the_same_one_again() {
    let cluster = shared();
    let (locks, others) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
    let keys: Vec<String> = (0..12).map(|number| format!("several{number}")).collect();
    let all = locks.acquire_all(&keys, options()).await.expect("free");
    for key in &keys {
        let busy = others
            .try_acquire(&**key, options())
            .await
            .expect("an answer");
        assert!(busy.is_none(), "{key}");
    }
    let own = keys.clone();
    let waiting = tokio::spawn(async move { others.acquire_all(own, options()).await });
    all.release().await.expect("held");
    granted(waiting).await.release().await.expect("held");
    locks
        .run("again", options(), async |lease| {
            let again = locks.acquire("again", options()).await.expect("ours");
            assert_eq!(again.lease().fencing_token(), lease.fencing_token());
            again.release().await.expect("held");
            lease.verify().await.expect("held");
        })
        .await
        .expect("free");
    let left = keys
        .iter()
        .map(String::as_str)
        .chain(["again"])
        .filter(|key| {
            let full_key = format!("lock:{key}");
            cluster.node_of(&full_key).get(&full_key).is_some()
        });
    assert_eq!(left.count(), 0);
}

#[tokio::test]
async fn operators_look_take_away_and_check() {
    let cluster = shared();
    let (locks, others) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
    let guard = locks.acquire("seen", options()).await.expect("free");
    let waiting = in_line(&cluster, &others, "seen").await;
    let seen = others.inspect("seen").await.expect("an answer");
    let seen = seen.expect("held");
    assert_eq!(seen.waiters, 1, "{seen:?}");
    assert!(others.inspect("unseen").await.expect("an answer").is_none());
    locks.force_release("seen").await.expect("an answer");
    let next = granted(waiting).await;
    assert!(fencing_token(&next) > fencing_token(&guard));
    let reason = timeout(HANG, guard.lease().lost()).await.expect("noticed");
    assert_eq!(reason, LeaseLost::TakenAway);
    next.release().await.expect("held");
    let health = locks.check().await.expect("well");
    assert!(health.warnings.is_empty(), "{health:?}");
}

#[tokio::test]
async fn a_check_and_a_shutdown_reach_every_node() {
    let cluster = Cluster::builder().masters_alone(3).start();
    let locks = connect(&cluster.url()).await;
    for (node, policy) in cluster.nodes().iter().zip(["allkeys-lru", "volatile-ttl"]) {
        node.cli(&["CONFIG", "SET", "maxmemory", "100mb"]);
        node.cli(&["CONFIG", "SET", "maxmemory-policy", policy]);
    }
    let health = locks.check().await.expect("it answers");
    assert_eq!(health.warnings.len(), 2, "{health:?}");
    let mut guards = Vec::new();
    for number in 0..30 {
        let key = format!("k{number}");
        guards.push(locks.acquire(key, options()).await.expect("free"));
    }
    drop(guards);
    timeout(HANG, locks.shutdown(SECOND * 5))
        .await
        .expect("no hang");
    for node in cluster.nodes() {
        assert!(node.keys("lock:*").is_empty());
        assert!(node.keys("__lock_core__:*check*").is_empty());
    }
}

#[tokio::test]
async fn urls_that_do_not_fit_are_refused_with_a_reason() {
    let cluster = shared();
    let node = &cluster.nodes()[0];
    let single = RedisServer::start();
    for (url, reason) in [
        (node.url(), "write `redis+cluster://"),
        (
            single.url().replace("redis:", "redis+cluster:"),
            "use a `redis://` url",
        ),
        (format!("{}/3", cluster.url()), "database 0 only"),
    ] {
        let refused = timeout(HANG, LockManager::connect(&url)).await;
        let error = refused.expect("at once").expect_err(&url);
        assert!(
            matches!(error, LockError::Invalid { .. }),
            "{url}: {error:?}"
        );
        assert!(error.to_string().contains(reason), "{url}: {error}");
    }
}
