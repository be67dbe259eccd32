//! What is special about a cluster: keys in slots, slots that move, nodes that come and go. A manager stands for a process.

use std::{
    sync::{Arc, Mutex, PoisonError, Weak},
    time::{Duration, Instant},
};

use lock_core::{LeaseLost, LockError, LockGuard, LockManager, LockOptions};
use lock_tests::{Cluster, Direction, Kind, Proxy, RedisServer, eventually, slot_of, tag_of_slot};
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
