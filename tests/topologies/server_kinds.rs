//! Servers and proxies of other kinds. Each does what its row in `docs/servers.md` says, or is refused at connect with advice.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use lock_core::{
    LeaseLost, LockError, LockManager, LockOptions, OnceOptions,
    inspect::{Health, Topic},
};
use lock_tests::{
    AcquireFree as _, HANG, Proxy, Quirk, RedisServer, ReleaseHeld as _, SECOND, StandIn,
    ThirdParty, assert_fails, checked, connect, eventually, granted, invalid, patient, unavailable,
};
use tokio::{task::JoinSet, time::timeout};

/// A lease is renewed after a third of its ttl. By then, a proxy has closed connections that were idle for two seconds.
const TTL: Duration = Duration::from_secs(8);

/// Starts a server with a stand-in in front of it.
fn stand_in(quirk: Quirk) -> (RedisServer, StandIn) {
    let server = RedisServer::start();
    let stand_in = StandIn::start(server.port(), quirk);
    (server, stand_in)
}

fn calls(servers: &[RedisServer]) -> u64 {
    let commands = ["eval", "evalsha", "set", "get"];
    let all = |server: &RedisServer| commands.map(|name| server.calls(name)).iter().sum::<u64>();
    servers.iter().map(all).sum()
}

/// An exclusive lock excludes, is renewed, and is handed over to a waiter. It leaves nothing.
async fn exclusive_locks_work(url: &str, servers: &[RedisServer], ttl: Duration) {
    let (one, other) = (connect(url).await, connect(url).await);
    let guard = one.acquire_free("k", LockOptions::new(ttl)).await;
    let started = Instant::now();
    let busy = other.acquire("k", patient().no_wait()).await;
    assert_fails!(busy, LockError::Busy { .. });
    let before = calls(servers);
    let waiting = {
        let other = other.clone();
        tokio::spawn(async move { other.acquire("k", patient()).await })
    };
    eventually!(HANG, "it waits" => calls(servers) > before);
    eventually!(HANG, "the first ttl has elapsed" => started.elapsed() > ttl);
    guard.lease().verify().await.expect("renewed");
    assert!(!waiting.is_finished());
    let before = guard.lease().fencing_token();
    guard.release_held().await;
    let next = granted(waiting).await;
    assert!(next.lease().fencing_token() > before);
    next.release_held().await;
    for server in servers {
        assert_eq!(server.keys("lock:*"), [""; 0]);
    }
}

async fn shared_locks_permits_and_results_work(url: &str) {
    let (one, other) = (connect(url).await, connect(url).await);
    let first = one.acquire_free("s", patient().shared()).await;
    let second = other.acquire_free("s", patient().shared()).await;
    assert_eq!(
        first.lease().fencing_token(),
        second.lease().fencing_token()
    );
    first.release_held().await;
    second.release_held().await;

    let permits = || patient().permits(2);
    let first = one.acquire_free("p", permits()).await;
    let second = other.acquire_free("p", permits()).await;
    assert_ne!(first.lease().permit(), second.lease().permit());
    let third = one.try_acquire("p", permits()).await;
    assert!(third.expect("a reply").is_none());
    first.release_held().await;
    second.release_held().await;

    let runs = AtomicU32::new(0);
    for locks in [&one, &other] {
        let body = async |_| Ok::<_, String>(runs.fetch_add(1, SeqCst));
        let ran = locks.run_once("o", OnceOptions::keep(SECOND * 60), body);
        assert_eq!(ran.await.expect("a reply"), Ok(0));
    }
    one.forget("o").await.expect("a reply");
}

async fn a_shared_key_refuses_an_exclusive_request(url: &str) {
    let (one, other) = (connect(url).await, connect(url).await);
    let guard = one.acquire_free("s", patient().shared()).await;
    let refused = other.try_acquire("s", patient()).await;
    assert!(refused.expect("a reply").is_none());
    guard.release_held().await;
}

/// Inspects a lock, lists all locks, and takes the lock from its holder. Returns the number of listed locks.
async fn operators_inspect_list_and_release(url: &str) -> Result<usize, LockError> {
    let (one, other) = (connect(url).await, connect(url).await);
    let guard = one.acquire_free("k", LockOptions::new(SECOND * 6)).await;
    let found = other.inspect("k").await.expect("a reply").expect("held");
    assert_eq!(found.holders, 1);
    let (mut list, mut listed) = (other.list(""), Ok(0));
    while let (Ok(count), Some(next)) = (&mut listed, list.next().await) {
        match next {
            Ok(_) => *count += 1,
            Err(error) => listed = Err(error),
        }
    }
    other.force_release("k").await.expect("a reply");
    let reason = timeout(HANG, guard.lease().lost()).await;
    assert_eq!(reason.expect("noticed"), LeaseLost::TakenAway);
    listed
}

/// Returns the findings of a check, which has no warning.
async fn everything_works(url: &str, servers: &[RedisServer]) -> Health {
    exclusive_locks_work(url, servers, SECOND * 4).await;
    shared_locks_permits_and_results_work(url).await;
    a_shared_key_refuses_an_exclusive_request(url).await;
    assert_eq!(
        operators_inspect_list_and_release(url)
            .await
            .expect("a list"),
        1
    );
    let health = checked(&connect(url).await).await;
    assert!(health.warnings.is_empty(), "{health:?}");
    health
}

async fn everything_works_by_polling(url: &str, server: RedisServer) {
    let health = everything_works(url, &[server]).await;
    assert!(!health.servers[0].notifies, "{health:?}");
}

/// Connecting is refused as [`LockError::Invalid`], with these words.
async fn connecting_is_refused(url: &str, words: &str) {
    let refused = LockManager::connect(url).await;
    invalid(&refused.expect_err("it cannot keep locks"), words);
}

#[tokio::test]
async fn several_shards_behind_one_endpoint_are_refused_unless_the_url_says_so() {
    let (_server, shards) = stand_in(Quirk::OtherSlots);
    connecting_is_refused(&shards.url(), "add `?sharded=true` to its url").await;
    // `servers.rs` tests the locks.
    let url = format!("{}?sharded=true", shards.url());
    let listed = operators_inspect_list_and_release(&url).await;
    assert_eq!(listed.expect("a list"), 1);
    let health = checked(&connect(&url).await).await;
    assert!(health.warnings.is_empty(), "{health:?}");
}

#[tokio::test]
async fn envoy_supports_all_but_lists_and_messages() {
    let (server, envoy) = stand_in(Quirk::Envoy { password: None });
    a_proxy_of_scripts_works(&envoy.url(), &[server]).await;
}

#[tokio::test]
async fn envoy_requires_its_own_password() {
    let password = Some("word");
    let (_server, envoy) = stand_in(Quirk::Envoy { password });
    let locks = connect(&envoy.url_with("word")).await;
    locks
        .acquire_free("k", patient())
        .await
        .release_held()
        .await;
    for url in [envoy.url_with("other"), envoy.url()] {
        connecting_is_refused(&url, "refuses the user or password").await;
    }
}

#[tokio::test]
async fn an_earlier_envoy_refuses_in_other_words() {
    let (server, envoy) = stand_in(Quirk::OldEnvoy);
    a_proxy_of_scripts_works(&envoy.url(), &[server]).await;
}

/// The proxy sends each script to the server of its first key, and passes no other command that locks need.
async fn a_proxy_of_scripts_works(url: &str, servers: &[RedisServer]) {
    exclusive_locks_work(url, servers, SECOND * 4).await;
    shared_locks_permits_and_results_work(url).await;
    a_shared_key_refuses_an_exclusive_request(url).await;
    let listed = operators_inspect_list_and_release(url).await;
    assert_fails!(listed, LockError::Invalid { .. });
    let health = checked(&connect(url).await).await;
    let topics: Vec<_> = health.warnings.iter().map(|found| found.topic).collect();
    assert_eq!(topics, [Topic::Proxy]);
    assert!(!health.servers[0].notifies, "{health:?}");
}

#[tokio::test]
async fn redis_cluster_proxy_works_with_sharded_names() {
    let (server, proxy) = stand_in(Quirk::ClusterProxy);
    everything_works_by_polling(&format!("{}?sharded=true", proxy.url()), server).await;
}

#[tokio::test]
async fn a_server_that_refuses_resp3_in_other_words_is_polled() {
    let (server, old) = stand_in(Quirk::Resp3);
    everything_works_by_polling(&old.url(), server).await;
}

#[tokio::test]
async fn a_server_that_closes_connections_at_a_subscription_is_polled() {
    let (server, closing) = stand_in(Quirk::Subscriptions);
    everything_works_by_polling(&closing.url(), server).await;
}

#[tokio::test]
async fn a_server_that_refuses_commands_after_a_subscription_is_polled() {
    let (server, deaf) = stand_in(Quirk::CommandsAfterSubscribe);
    everything_works_by_polling(&deaf.url(), server).await;
}

#[tokio::test]
async fn a_server_without_streams_is_refused() {
    for without in [&["XADD"][..], &["XADD", "EVAL", "EVALSHA"]] {
        let server = without.iter().fold(RedisServer::builder(), |server, name| {
            server.without_command(name)
        });
        connecting_is_refused(&server.start().url(), "has no streams").await;
    }
}

#[tokio::test]
async fn a_replica_is_refused_unless_it_is_promoted_in_time() {
    let (primary, replica) = (RedisServer::start(), RedisServer::start());
    replica.cli(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
    let proxy = Proxy::start(replica.port());
    let within = |timeout| {
        let (builder, url) = (LockManager::builder().connect_timeout(timeout), proxy.url());
        tokio::spawn(async move { builder.connect(&url).await })
    };
    let refused = within(SECOND).await.expect("no panic");
    let names = format!("is a replica of 127.0.0.1:{}", primary.port());
    unavailable(&refused.expect_err("it accepts no writes"), &names);
    proxy.clear_log();
    let connecting = within(HANG);
    eventually!(HANG, "it asks for the role again" => proxy.requests("INFO") > 1);
    replica.cli(&["REPLICAOF", "NO", "ONE"]);
    let locks = timeout(HANG, connecting).await.expect("no hang");
    let locks = locks.expect("no panic").expect("a primary");
    locks
        .acquire_free("k", patient())
        .await
        .release_held()
        .await;
}

/// `HAProxy` closes the connections of holders and waiters, which send nothing for two seconds.
#[tokio::test]
async fn locks_and_waits_survive_the_time_outs_of_haproxy() {
    let server = RedisServer::start();
    let haproxy = ThirdParty::haproxy(&server);
    let connections = || server.calls("hello");
    let before = connections();
    exclusive_locks_work(&haproxy.url(), std::slice::from_ref(&server), TTL).await;
    assert!(connections() > before + 4, "none was closed");
    everything_works(&haproxy.url(), &[server]).await;
}

#[tokio::test]
async fn twemproxy_supports_all_but_lists_and_messages() {
    let servers = [(); 2].map(|()| RedisServer::start());
    let twemproxy = ThirdParty::twemproxy(&servers);
    a_proxy_of_scripts_works(&twemproxy.url(), &servers).await;
}

/// Although it speaks RESP3, it refuses commands after a subscription. Its scripts have no hashes.
#[tokio::test]
#[ignore = "fetched by `tests/run --all`"]
async fn fakeredis_with_lua_supports_all_but_messages() {
    let fakeredis = ThirdParty::fakeredis();
    let url = fakeredis.url();
    tasks_of_several_managers_exclude_each_other(&url, 20).await;
    assert_eq!(
        operators_inspect_list_and_release(&url)
            .await
            .expect("a list"),
        1
    );
    shared_locks_permits_and_results_work(&url).await;
    assert!(!checked(&connect(&url).await).await.servers[0].notifies);
    let (one, other) = (connect(&url).await, connect(&url).await);
    let guard = one.acquire_free("x", patient().shared()).await;
    let refused = other.try_acquire("x", patient()).await;
    assert_fails!(refused, LockError::Unavailable { .. });
    let waiting = tokio::spawn(async move { other.acquire("x", patient()).await });
    guard.release_held().await;
    let next = granted(waiting).await;
    next.release_held().await;
}

#[tokio::test]
#[ignore = "fetched by `tests/run --all`"]
async fn fakeredis_without_lua_supports_exclusive_locks() {
    let fakeredis = ThirdParty::fakeredis_without_lua();
    let url = fakeredis.url();
    // Waiters poll, in no particular order.
    tasks_of_several_managers_exclude_each_other(&url, 3).await;
    assert_eq!(
        operators_inspect_list_and_release(&url)
            .await
            .expect("a list"),
        1
    );
    let shared = connect(&url).await.acquire("s", patient().shared()).await;
    assert_fails!(shared, LockError::Invalid { .. });
}

async fn tasks_of_several_managers_exclude_each_other(url: &str, rounds: usize) {
    const KEYS: usize = 4;
    let inside = Arc::new([(); KEYS].map(|()| Mutex::new((0_u32, 0_u64))));
    let mut tasks = JoinSet::new();
    for manager in 0..3 {
        let locks = connect(url).await;
        for task in 0..4 {
            let (locks, inside) = (locks.clone(), inside.clone());
            tasks.spawn(async move {
                for round in 0..rounds {
                    let key = (manager + task + round) % KEYS;
                    let guard = locks.acquire(format!("key:{key}"), patient()).await;
                    let guard = guard.expect("its turn");
                    let token = u64::from(guard.lease().fencing_token());
                    {
                        let mut inside = inside[key].lock().expect("no panic");
                        inside.0 += 1;
                        assert_eq!(inside.0, 1, "two have {key}");
                        assert!(token > inside.1, "{token} after {}", inside.1);
                        inside.1 = token;
                    }
                    tokio::task::yield_now().await;
                    inside[key].lock().expect("no panic").0 -= 1;
                    guard.release_held().await;
                }
            });
        }
    }
    while let Some(ended) = timeout(HANG, tasks.join_next()).await.expect("no hang") {
        ended.expect("no panic");
    }
}
