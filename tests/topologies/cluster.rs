//! The special cases of a cluster: keys in slots, slots that move, nodes that join and leave. A manager stands for a process.

use std::{
    sync::{Arc, Mutex, PoisonError, Weak},
    time::{Duration, Instant},
};

use lock_core::{LeaseLost, LockError, LockManager, LockOptions};
use lock_tests::{
    AcquireFree as _, AfterLoss, Cluster, Direction, FakeServer, Frames, HANG, Kind, Migration,
    Proxy, RedisServer, ReleaseHeld as _, SECOND, checked, connect, connect_with_time_out,
    eventually, granted, slot_of, tag_of_slot,
};
use redis::Value;
use tokio::time::timeout;

use crate::waiters::{Waiting, many_wait_in_an_outage};

/// Returns three masters without replicas, shared by tests that use keys of their own. They may move slots, but stop no node. The
/// masters end with the last of these tests.
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

/// Options with a ttl that outlasts every test, so that a key that becomes free was released and did not expire.
fn options() -> LockOptions {
    LockOptions::new(HANG).wait(HANG)
}

/// Long for a hand-over and a clean-up, but much shorter than that ttl.
const SOON: Duration = Duration::from_secs(30);

/// Returns this many keys whose locks are on one node.
pub(super) fn keys_of(
    cluster: &Cluster,
    node: &RedisServer,
    front: &str,
    count: usize,
) -> Vec<String> {
    let keys = (0..).map(|number| format!("{front}{number}"));
    keys.filter(|key| cluster.master_of(&format!("lock:{key}")).port() == node.port())
        .take(count)
        .collect()
}

fn queue_of(key: &str) -> String {
    let tag = tag_of_slot(slot_of(&format!("lock:{key}")));
    format!("__lock_core__:{{{tag}}}:waiters:lock:{key}")
}

fn clock_of(key: &str) -> String {
    let tag = tag_of_slot(slot_of(&format!("lock:{key}")));
    format!("__lock_core__:{{{tag}}}:clock")
}

/// Returns the length of the queue of a key on the node of its slot.
fn queue_length(node: &RedisServer, key: &str) -> usize {
    match node.try_cli(&["ZCARD", &queue_of(key)]) {
        Ok(Value::Int(length)) => usize::try_from(length).expect("a length"),
        _ => 0,
    }
}

/// Makes a manager wait for a key, and returns once it is queued.
async fn queued(cluster: &Cluster, locks: &LockManager, key: &str) -> Waiting {
    let node = cluster.master_of(&format!("lock:{key}"));
    let before = queue_length(node, key);
    let (locks, own) = (locks.clone(), key.to_owned());
    let waiting = tokio::spawn(async move { locks.acquire(own, options()).await });
    eventually!(HANG, "it is in the wait queue" => queue_length(node, key) > before);
    waiting
}

/// Returns the migration of the slot of a key to another master.
pub(super) fn to_another_master<'a>(cluster: &'a Cluster, full_key: &str) -> Migration<'a> {
    let source = cluster.master_of(full_key).port();
    let mut masters = cluster.masters().into_iter();
    let target = masters.find(|node| node.port() != source);
    cluster.migration(slot_of(full_key), target.expect("three masters"))
}

#[tokio::test]
async fn a_silent_node_costs_no_leases_on_other_nodes() {
    let cluster = alone();
    for node in cluster.nodes() {
        node.cli(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    let masters = cluster.masters();
    let locks = connect(&cluster.url()).await;
    let ttl = SECOND * 4;
    let short = LockOptions::new(ttl);
    let mut lost = Vec::new();
    for key in keys_of(&cluster, masters[0], "lost", 40) {
        lost.push(locks.acquire_free(key, short.clone()).await);
    }
    let mut kept = Vec::new();
    for key in keys_of(&cluster, masters[1], "kept", 3) {
        kept.push(locks.acquire_free(key, short.clone()).await);
    }
    masters[0].stop();
    for guard in &lost {
        let reason = timeout(HANG, guard.lease().lost()).await.expect("noticed");
        assert_eq!(reason, LeaseLost::Expired);
    }
    ttls_pass(ttl, 1).await;
    for guard in kept {
        guard.lease().verify().await.expect("held");
        guard.release_held().await;
    }
    masters[0].cont();
}

/// Returns the url of a user that may do everything but run scripts.
fn url_without_scripts(cluster: &Cluster) -> String {
    for node in cluster.nodes() {
        node.add_user_without_scripts();
    }
    let (user, password) = RedisServer::WITHOUT_SCRIPTS;
    cluster.url_as(user, password)
}

#[tokio::test]
async fn a_check_and_a_shutdown_reach_every_node() {
    let cluster = alone();
    let locks = connect(&cluster.url()).await;
    for (node, policy) in cluster.nodes().iter().zip(["allkeys-lru", "volatile-ttl"]) {
        node.cli(&["CONFIG", "SET", "maxmemory", "100mb"]);
        node.cli(&["CONFIG", "SET", "maxmemory-policy", policy]);
    }
    let health = checked(&locks).await;
    assert_eq!(health.warnings.len(), 2, "{health:?}");
    for node in &cluster.nodes()[..2] {
        let named = format!("127.0.0.1:{}: ", node.port());
        let mut warnings = health.warnings.iter();
        assert!(
            warnings.any(|warning| warning.text.contains(&named)),
            "{health:?}"
        );
    }
    let mut guards = Vec::new();
    for number in 0..30 {
        let key = format!("k{number}");
        guards.push(locks.acquire_free(key, options()).await);
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

/// Waits for this many ttls, in which leases are renewed in the background.
async fn ttls_pass(ttl: Duration, count: u32) {
    let end = Instant::now() + ttl * count;
    eventually!(HANG, "some ttls are over" => Instant::now() > end);
}

#[tokio::test]
async fn a_lease_is_kept_while_its_slot_moves_step_by_step() {
    lease_is_kept_while_its_slot_moves(&shared(), "moves{held}", "stays{held}", |ttl| ttl).await;
}

/// Before Redis 7, the source of a slot that moves answers `ASK` if any key of a request is missing.
#[tokio::test]
#[ignore = "fetched by `tests/run --all`"]
async fn leases_are_kept_while_a_slot_of_redis_6_2_moves_step_by_step() {
    let cluster = Cluster::of(Kind::Redis62);
    let (shared, permits) = (LockOptions::shared, |ttl: LockOptions| ttl.permits(2));
    tokio::join!(
        lease_is_kept_while_its_slot_moves(&cluster, "moves{held}", "stays{held}", |ttl| ttl),
        lease_is_kept_while_its_slot_moves(&cluster, "moves{shared}", "stays{shared}", shared),
        lease_is_kept_while_its_slot_moves(&cluster, "moves{permit}", "stays{permit}", permits),
    );
}

#[tokio::test]
async fn a_shared_lease_is_kept_while_its_slot_moves_step_by_step() {
    let shared_mode = LockOptions::shared;
    lease_is_kept_while_its_slot_moves(&shared(), "moves{shared}", "stays{shared}", shared_mode)
        .await;
}

#[tokio::test]
async fn a_permit_is_kept_while_its_slot_moves_step_by_step() {
    let permits = |ttl: LockOptions| ttl.permits(2);
    lease_is_kept_while_its_slot_moves(&shared(), "moves{permit}", "stays{permit}", permits).await;
}

async fn lease_is_kept_while_its_slot_moves(
    cluster: &Cluster,
    held: &'static str,
    dropped: &'static str,
    in_mode: fn(LockOptions) -> LockOptions,
) {
    let locks = connect(&cluster.url()).await;
    let ttl = SECOND * 4;
    let options = || in_mode(LockOptions::new(ttl));
    let guard = locks.acquire_free(held, options()).await;
    let other = locks.acquire_free(dropped, options()).await;
    let full_key = format!("lock:{held}");
    let migration = to_another_master(cluster, &full_key);
    let target = migration.target();
    migration.open();
    ttls_pass(ttl, 1).await;
    guard.lease().verify().await.expect("not yet moved");
    migration.move_lock(&full_key);
    // The locks of the slot are now on different nodes.
    ttls_pass(ttl, 1).await;
    guard.lease().verify().await.expect("moved");
    other.lease().verify().await.expect("not yet moved");
    migration.move_keys();
    ttls_pass(ttl, 1).await;
    guard.lease().verify().await.expect("all has moved");
    other.lease().verify().await.expect("all has moved");
    drop(other);
    migration.close();
    ttls_pass(ttl, 1).await;
    guard.lease().verify().await.expect("the slot has moved");
    guard.release_held().await;
    let pattern = format!("lock:*{{{}", held.rsplit('{').next().expect("a tag"));
    eventually!(HANG, "the dropped lock is gone" => target.keys(&pattern).is_empty());
    let again = locks.acquire_free(held, options()).await;
    again.release_held().await;
}

#[tokio::test]
async fn users_without_scripts_keep_their_leases_while_a_slot_moves() {
    let cluster = shared();
    let locks = connect(&url_without_scripts(&cluster)).await;
    let ttl = SECOND * 4;
    let (gone, left) = ("gone{plainly}", "left{plainly}");
    let options = LockOptions::new(ttl);
    let first = locks.acquire_free(gone, options.clone()).await;
    let second = locks.acquire_free(left, options).await;
    let full_key = format!("lock:{gone}");
    let migration = to_another_master(&cluster, &full_key);
    migration.open();
    migration.move_key(&full_key);
    ttls_pass(ttl, 2).await;
    first.lease().verify().await.expect("it has moved");
    second.lease().verify().await.expect("it has not");
    migration.move_keys();
    migration.close();
    first.release_held().await;
    second.release_held().await;
}

#[tokio::test]
async fn a_lock_that_is_released_while_its_slot_moves_is_free_afterwards() {
    let cluster = shared();
    let locks = connect(&cluster.url()).await;
    let key = "released{while}";
    let full_key = format!("lock:{key}");
    let guard = locks.acquire_free(key, options()).await;
    let (source, migration) = (
        cluster.master_of(&full_key),
        to_another_master(&cluster, &full_key),
    );
    let target = migration.target();
    migration.open();
    migration.move_keys();
    let before = source.calls("evalsha") + target.calls("eval");
    let releasing = tokio::spawn(guard.release());
    let started = Instant::now();
    eventually!(HANG, "some time has passed" => started.elapsed() > SECOND * 2);
    // Other tests also use these nodes, so the bound is loose, but far below a busy loop.
    let asked = source.calls("evalsha") + target.calls("eval") - before;
    let took = started.elapsed();
    assert!(
        u128::from(asked) < took.as_millis(),
        "{asked} questions in {took:?}"
    );
    migration.close();
    match timeout(HANG, releasing)
        .await
        .expect("no hang")
        .expect("no panic")
    {
        Ok(()) | Err(LockError::Unavailable { .. }) => {}
        odd => panic!("{odd:?}"),
    }
    let closed = Instant::now();
    let again = locks.acquire(key, options()).await.expect("free soon");
    assert!(closed.elapsed() < SOON, "long before its ttl");
    assert!(target.get(&full_key).is_some());
    again.release_held().await;
}

#[tokio::test]
async fn a_node_joins_and_leaves() {
    let cluster = Cluster::builder().masters_alone(3).with_a_spare().start();
    let (locks, others) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
    let spare = &cluster.nodes()[3];
    // Otherwise the spare would become a replica of the node that gets its only slot back.
    spare.cli(&["CONFIG", "SET", "cluster-allow-replica-migration", "no"]);
    let source = cluster.master_of("lock:k");
    let short = LockOptions::new(SECOND * 10);
    let guard = locks.acquire_free("k", short.clone()).await;
    // The slot map does not name a node without slots, so clients learn of this one only from redirects.
    let migration = cluster.migration(slot_of("lock:k"), spare);
    migration.open();
    migration.move_keys();
    migration.close();
    guard.lease().verify().await.expect("held");
    let waiting = queued(&cluster, &others, "k").await;
    guard.release_held().await;
    let guard = granted(waiting).await;
    assert!(spare.get("lock:k").is_some());
    let migration = cluster.migration(slot_of("lock:k"), source);
    migration.open();
    migration.move_keys();
    migration.close();
    let id: String = redis::from_redis_value(spare.cli(&["CLUSTER", "MYID"])).expect("text");
    spare.kill9();
    for node in &cluster.nodes()[..3] {
        node.cli(&["CLUSTER", "FORGET", &id]);
    }
    eventually!(HANG, "the slot is found again" => guard.lease().verify().await.is_ok());
    let own = locks.clone();
    let waiting = tokio::spawn(async move { own.acquire("k", short).await });
    guard.release_held().await;
    granted(waiting).await.release_held().await;
}

#[tokio::test]
async fn one_seed_that_answers_is_enough() {
    let cluster = shared();
    let live = cluster.nodes()[1].port();
    let silent = [(); 8].map(|()| FakeServer::silent());
    let silent = silent.each_ref().map(|server| server.port().to_string());
    let url = format!(
        "redis+cluster://127.0.0.1:1,127.0.0.1:{},127.0.0.1:2,127.0.0.1:{live}",
        silent.join(",127.0.0.1:")
    );
    let started = Instant::now();
    let locks = connect(&url).await;
    let took = started.elapsed();
    // One after the other, each of the eight would take the connect time-out of two seconds.
    assert!(took < SECOND * 12, "{took:?}");
    for number in 0..10 {
        let key = format!("seed{number}");
        let guard = locks.acquire_free(key, options()).await;
        guard.release_held().await;
    }
}

#[tokio::test]
async fn a_replica_leads_to_all_masters_and_the_password_reaches_them() {
    let cluster = Cluster::builder().password("s3cret").start();
    let replica = cluster.replica_of("lock:k");
    let url = format!("redis+cluster://:s3cret@127.0.0.1:{}", replica.port());
    let locks = connect(&url).await;
    for number in 0..10 {
        let key = format!("k{number}");
        let guard = locks.acquire_free(key, options()).await;
        guard.release_held().await;
    }
}

#[tokio::test]
async fn channels_without_waiters_are_unsubscribed_and_no_waiter_is_lost() {
    let cluster = Cluster::builder().masters_alone(1).start();
    let node = &cluster.nodes()[0];
    let channels = || match node.cli(&["PUBSUB", "SHARDCHANNELS"]) {
        Value::Array(channels) => channels.len(),
        odd => panic!("no list: {odd:?}"),
    };
    let (one, other) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
    let guard = one.acquire_free("k", options().wait(Duration::ZERO)).await;
    let waiting = queued(&cluster, &other, "k").await;
    let mut held = Vec::new();
    let mut tasks = Vec::new();
    for number in 0..600 {
        let key = format!("many{number}");
        held.push(one.acquire_free(key.as_str(), options()).await);
        let locks = other.clone();
        tasks.push(tokio::spawn(async move {
            let guard = locks.acquire(key, options()).await.expect("waited for");
            guard.release_held().await;
        }));
    }
    eventually!(HANG, "all wait" => channels() > 512);
    for guard in held {
        guard.release_held().await;
    }
    for task in tasks {
        task.await.expect("no panic");
    }
    let started = Instant::now();
    eventually!(HANG, "most have not been used for a while" => started.elapsed() > SECOND * 11);
    // One more lock uses two of these connections.
    let blocks = one.acquire_free("one more", options()).await;
    let one_more = tokio::spawn(async move { other.acquire("one more", options()).await });
    eventually!(HANG, "the others are unsubscribed" => channels() < 10);
    for guard in [guard, blocks] {
        guard.release_held().await;
    }
    for waiting in [waiting, one_more] {
        granted(waiting).await.release_held().await;
    }
}

/// A cluster of masters that clients reach through one proxy each.
struct Proxied {
    cluster: Cluster,
    proxies: Vec<Proxy>,
}

impl Proxied {
    async fn start(masters: usize) -> Self {
        let cluster = Cluster::builder().masters_alone(masters).start();
        let nodes = cluster.nodes().iter();
        let proxies: Vec<_> = nodes.map(|node| Proxy::start(node.port())).collect();
        for (node, proxy) in cluster.nodes().iter().zip(&proxies) {
            let port = proxy.port().to_string();
            node.cli(&["CONFIG", "SET", "cluster-announce-port", &port]);
        }
        eventually(HANG, "all nodes know of all proxies", async || {
            let mut nodes = cluster.nodes().iter();
            nodes.all(|node| {
                let map: String =
                    redis::from_redis_value(node.cli(&["CLUSTER", "NODES"])).expect("text");
                let mut proxies = proxies.iter();
                proxies.all(|proxy| map.contains(&format!(":{}@", proxy.port())))
            })
        })
        .await;
        Self { cluster, proxies }
    }

    fn url(&self) -> String {
        format!("redis+cluster://127.0.0.1:{}", self.proxies[0].port())
    }

    fn locks_left(&self) -> usize {
        let nodes = self.cluster.nodes().iter();
        nodes.map(|node| node.keys("lock:*").len()).sum()
    }
}

#[tokio::test]
async fn futures_dropped_in_flight_leave_no_lock() {
    let proxied = Proxied::start(2).await;
    let locks = connect_with_time_out(SECOND * 20, &proxied.url()).await;
    for number in 0..20 {
        let guard = locks.acquire(format!("{{{number}}}warm"), options()).await;
        guard.expect("free").release_held().await;
    }
    for proxy in &proxied.proxies {
        assert!(
            proxy.requests("EVALSHA") + proxy.requests("SET") > 0,
            "it is not bypassed"
        );
        proxy.delay(Direction::Requests, SECOND * 5);
        proxy.clear_log();
    }
    for number in 0..50 {
        let key = format!("{{{}}}k{number}", number % 20);
        let acquire = locks.acquire(key, options());
        assert!(timeout(Duration::from_millis(5), acquire).await.is_err());
    }
    let asked = || -> usize {
        let all = proxied.proxies.iter();
        all.map(|proxy| proxy.requests("EVALSHA") + proxy.requests("SET"))
            .sum()
    };
    // A few futures may have been dropped before their requests were sent, because they began with another step.
    eventually!(HANG, "most requests were sent" => asked() >= 30);
    for proxy in &proxied.proxies {
        proxy.heal();
    }
    // These requests reach both nodes after all earlier ones.
    for number in 0..20 {
        let guard = locks.acquire(format!("{{{number}}}warm"), options()).await;
        guard.expect("free").release_held().await;
    }
    eventually!(SOON, "none is left long before the ttl" => proxied.locks_left() == 0);
}

#[tokio::test]
async fn locks_work_without_grant_messages() {
    let proxied = Proxied::start(1).await;
    let proxy = &proxied.proxies[0];
    proxy.lose(
        Direction::Replies,
        Frames::of("SSUBSCRIBE"),
        AfterLoss::Reset,
    );
    let (one, other) = (connect(&proxied.url()).await, connect(&proxied.url()).await);
    let guard = one.acquire_free("k", options().wait(SECOND * 5)).await;
    let waiting = tokio::spawn(async move { other.acquire("k", options()).await });
    let asked = proxy.requests("SSUBSCRIBE");
    eventually!(HANG, "it tries to subscribe" => proxy.requests("SSUBSCRIBE") > asked + 2);
    guard.release_held().await;
    granted(waiting).await.release_held().await;
}

#[tokio::test]
async fn nodes_that_are_down_get_few_requests() {
    let proxied = Proxied::start(1).await;
    let proxy = &proxied.proxies[0];
    let gone = RedisServer::start();
    let locks = connect(&proxied.url()).await;
    let mut guards = Vec::new();
    for number in 0..50 {
        let key = format!("held{number}");
        guards.push(locks.acquire_free(key, options()).await);
    }
    gone.kill9();
    proxy.redirect_to(gone.port());
    proxy.reset();
    // At most one connection for locks and one for grants every 50 ms.
    let waiting = many_wait_in_an_outage(&locks, proxy, Duration::from_millis(25)).await;
    proxy.redirect_to(proxied.cluster.nodes()[0].port());
    for waiting in waiting {
        granted(waiting).await.release_held().await;
    }
    for guard in guards {
        guard.release_held().await;
    }
}

#[tokio::test]
async fn a_dropped_manager_leaves_no_connection_and_no_lock() {
    let cluster = Cluster::builder().masters_alone(2).start();
    let nodes = cluster.nodes().iter();
    let connections = || -> usize {
        nodes
            .clone()
            .map(RedisServer::connections_of_managers)
            .sum()
    };
    let (one, other) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
    let mut guards = Vec::new();
    for number in 0..10 {
        let key = format!("k{number}");
        guards.push(one.acquire_free(key, options()).await);
    }
    let waiting = queued(&cluster, &other, "k0").await;
    assert!(connections() > 4);
    waiting.abort();
    drop((guards, one, other));
    eventually!(SECOND * 10, "all connections are closed" => connections() == 0);
    for node in cluster.nodes() {
        assert!(node.keys("lock:*").is_empty());
    }
}

#[tokio::test]
async fn a_list_contains_the_locks_of_all_masters() {
    let cluster = Cluster::start();
    let locks = connect(&cluster.url()).await;
    let mut guards = Vec::new();
    for key in 0..30 {
        guards.push(locks.acquire_free(format!("k{key}"), options()).await);
    }
    let mut list = locks.list("k");
    let mut found = std::collections::BTreeSet::new();
    while let Some(lock) = list.next().await {
        found.insert(lock.expect("a reply").key);
    }
    assert_eq!(found.len(), 30);
    for guard in guards {
        guard.release_held().await;
    }
}

/// The fencing clock of one slot is ahead, as on a node with a fast clock. That says nothing about the other slots.
#[tokio::test]
async fn a_fencing_clock_that_is_ahead_does_not_affect_another_slot() {
    let cluster = Cluster::builder().masters_alone(3).start();
    let locks = connect(&cluster.url()).await;
    let [ahead, other] = ["ahead", "other{1}"];
    let master_of = |key: &str| cluster.master_of(&format!("lock:{key}"));
    let token = async |key: &str| {
        let guard = locks.acquire_free(key, options()).await;
        let token = guard.lease().fencing_token();
        guard.release_held().await;
        u64::from(token)
    };
    let first = token(ahead).await;
    master_of(ahead).set_fencing_clock(&clock_of(ahead), first + 600_000 * 2048);
    let far = token(ahead).await;
    let scripts = master_of(other).calls("evalsha");
    let before = master_of(other).calls("xadd");
    for _ in 0..5 {
        assert!(token(other).await < far, "the other clock does not follow");
    }
    assert!(master_of(other).calls("xadd") >= before + 5);
    let scripts = master_of(other).calls("evalsha") - scripts;
    assert_eq!(scripts, 5, "only the releases");
}

/// A node that receives a slot gets the clock with the other keys, and must not create one of its own.
#[tokio::test]
async fn no_second_fencing_clock_is_created_while_a_slot_moves() {
    let cluster = shared();
    let locks = connect(&cluster.url()).await;
    let key = "one{clock}";
    let full_key = format!("lock:{key}");
    let guard = locks.acquire_free(key, options()).await;
    let before = guard.lease().fencing_token();
    guard.release_held().await;
    let migration = to_another_master(&cluster, &full_key);
    let target = migration.target();
    migration.open();
    // The lock is free, so both nodes lack its key.
    for _ in 0..3 {
        let refused = locks.acquire(key, options().wait(SECOND / 2)).await;
        drop(refused);
        let count = |node: &RedisServer| {
            let words = ["CLUSTER", "COUNTKEYSINSLOT"];
            let slot = slot_of(&full_key).to_string();
            node.cli(&[words[0], words[1], &slot])
        };
        assert_eq!(count(target), Value::Int(0), "no key was created there");
    }
    migration.move_keys();
    migration.close();
    let guard = locks.acquire_free(key, options()).await;
    assert!(guard.lease().fencing_token() > before);
    assert!(target.get(&full_key).is_some());
    guard.release_held().await;
}

#[tokio::test]
async fn keys_on_several_nodes_are_acquired_together() {
    let cluster = shared();
    let (locks, others) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
    let keys: Vec<String> = (0..12).map(|number| format!("several{number}")).collect();
    let all = locks.acquire_all(&keys, options()).await.expect("free");
    for key in &keys {
        let busy = others.try_acquire(&**key, options()).await;
        assert!(busy.expect("a reply").is_none(), "{key}");
    }
    let own = keys.clone();
    let waiting = tokio::spawn(async move { others.acquire_all(own, options()).await });
    all.release_held().await;
    granted(waiting).await.release_held().await;
    for key in keys.iter().map(|key| format!("lock:{key}")) {
        assert_eq!(cluster.master_of(&key).get(&key), None, "{key}");
    }
}
