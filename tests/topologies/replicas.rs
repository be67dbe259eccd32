//! Locks that count only once replicas have acknowledged them.

use std::time::Duration;

use lock_core::{LockError, LockGuard, LockManager, LockOptions};
use lock_tests::{
    AcquireFree as _, AfterLoss, Cluster, Direction, Frames, HANG, Proxy, RedisServer,
    ReleaseHeld as _, SECOND, assert_fails, eventually, granted, run_in_a_row,
};

const QUEUE: &str = "__lock_core__:waiters:lock:k";

/// Options with a ttl that outlasts every test, so that a key that becomes free was released and did not expire.
fn options() -> LockOptions {
    LockOptions::new(HANG).wait(HANG)
}

/// A primary with a replica that has all its data.
async fn with_a_replica() -> (RedisServer, RedisServer) {
    let (primary, replica) = (RedisServer::start(), RedisServer::start());
    // By default, the primary waits five seconds for a second replica.
    primary.cli(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]);
    replica.cli(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
    eventually(HANG, "the replica is there", async || {
        primary.info("replication").contains("state=online")
    })
    .await;
    (primary, replica)
}

async fn connect(url: &str, replicas: u32, within: Duration) -> LockManager {
    LockManager::builder()
        .min_replicas_acked(replicas, within)
        .connect(url)
        .await
        .expect("the servers are up")
}

fn is_short_of_replicas(refused: &Result<LockGuard, LockError>) -> bool {
    let text = format!("{refused:?}");
    matches!(refused, Err(LockError::Unavailable { .. })) && text.contains("min_replicas_acked")
}

async fn no_lock_is_left(server: &RedisServer) {
    eventually(HANG / 2, "no lock is left", async || {
        server.keys("lock:*").is_empty()
    })
    .await;
}

/// Every lock is acquired on the connection that waits for replicas, whichever runtime requests it.
#[tokio::test]
async fn a_runtime_has_no_connection_that_its_locks_would_not_use() {
    let (primary, _replica) = with_a_replica().await;
    let locks = connect(&primary.url(), 1, SECOND).await;
    let guard = locks.acquire_free("k", options()).await;
    guard.release_held().await;
    assert_eq!(primary.connections_of_managers(), 2);
}

#[tokio::test]
async fn a_lock_that_too_few_replicas_acknowledge_is_refused_and_removed() {
    let (primary, replica) = with_a_replica().await;
    let locks = connect(&primary.url(), 1, SECOND).await;
    let guard = locks.acquire_free("k", options()).await;
    assert_eq!(
        replica.get("lock:k"),
        primary.get("lock:k"),
        "the replica has it"
    );
    guard.release_held().await;
    let demanding = connect(&primary.url(), 2, SECOND).await;
    replica.stop();
    for (locks, key) in [(&locks, "stopped"), (&demanding, "too few")] {
        let refused = locks.acquire(key, options().wait(SECOND * 3)).await;
        assert!(is_short_of_replicas(&refused), "{refused:?}");
        no_lock_is_left(&primary).await;
        let refused = locks.acquire(key, options().no_wait()).await;
        assert!(is_short_of_replicas(&refused), "{refused:?}");
    }
    no_lock_is_left(&primary).await;
    let waiting = tokio::spawn(async move { locks.acquire("k", options()).await });
    eventually!(HANG, "it tries" => primary.get("lock:k").is_some());
    replica.cont();
    let guard = granted(waiting).await;
    guard.release_held().await;
    let refused = demanding.acquire("k", options().wait(SECOND * 3)).await;
    assert!(is_short_of_replicas(&refused), "{refused:?}");
    no_lock_is_left(&primary).await;
}

#[tokio::test]
async fn a_grant_counts_once_replicas_have_it() {
    let (primary, replica) = with_a_replica().await;
    let (one, other) = (
        connect(&primary.url(), 1, SECOND).await,
        connect(&primary.url(), 1, SECOND).await,
    );
    let guard = one.acquire_free("k", options()).await;
    let own = other.clone();
    let waiting = tokio::spawn(async move { own.acquire("k", options()).await });
    eventually!(HANG, "it is in the wait queue" => !primary.keys(QUEUE).is_empty());
    let (waits, messages) = (primary.calls("wait"), primary.calls("publish"));
    let before = u64::from(guard.lease().fencing_token());
    guard.release_held().await;
    let next = granted(waiting).await;
    assert!(primary.calls("publish") > messages && primary.calls("wait") > waits);
    assert!(u64::from(next.lease().fencing_token()) > before);
    assert_eq!(replica.get("lock:k"), primary.get("lock:k"));
    // Without a replica, the next grant does not count.
    replica.stop();
    let waiting = tokio::spawn(async move { one.acquire("k", options()).await });
    eventually!(HANG, "it is in the wait queue" => !primary.keys(QUEUE).is_empty());
    let held = primary.get("lock:k");
    next.release_held().await;
    eventually(HANG, "it was granted", async || {
        let holder = primary.get("lock:k");
        holder.is_some() && holder != held
    })
    .await;
    let refused = other.acquire("k", options().wait(SECOND * 3)).await;
    assert!(refused.is_err() && !waiting.is_finished(), "{refused:?}");
    replica.cont();
    granted(waiting).await.release_held().await;
    no_lock_is_left(&primary).await;
}

/// The connection for acquires does not break with the one on which the release is lost.
#[tokio::test]
async fn an_acquire_waits_for_the_reply_to_a_release_in_the_background() {
    let (primary, _replica) = with_a_replica().await;
    let proxy = Proxy::start(primary.port());
    let locks = connect(&proxy.url(), 1, SECOND).await;
    for _ in 0..3 {
        let reset = async |_| {
            proxy.clear_log();
            proxy.lose(
                Direction::Requests,
                Frames::nth_of(1, "EVALSHA"),
                AfterLoss::Reset,
            );
        };
        let options = options().release_in_background();
        locks.run("k", options, reset).await.expect("free");
        eventually!(HANG, "the release is lost" => proxy.requests("EVALSHA") > 0);
        run_in_a_row(&locks, "k", 5).await;
    }
    locks.shutdown(HANG).await;
    no_lock_is_left(&primary).await;
}

#[tokio::test]
async fn leases_are_renewed_while_replicas_do_not_acknowledge() {
    let (primary, replica) = with_a_replica().await;
    let locks = connect(&primary.url(), 1, SECOND * 3).await;
    let mut guards = Vec::new();
    for number in 0..20 {
        let short = LockOptions::new(SECOND * 4);
        let key = format!("held{number}");
        guards.push(locks.acquire_free(key, short).await);
    }
    let handshakes = primary.calls("hello");
    replica.stop();
    let mut tries = Vec::new();
    for number in 0..10 {
        let (locks, key) = (locks.clone(), format!("wanted{number}"));
        tries.push(tokio::spawn(async move {
            locks.acquire(key, options().wait(SECOND * 6)).await
        }));
    }
    for refused in tries {
        let refused = refused.await.expect("no panic");
        assert_fails!(refused, LockError::Unavailable { .. });
    }
    // The refusals cost no connection.
    assert_eq!(primary.calls("hello"), handshakes, "none was replaced");
    for guard in &guards {
        guard.lease().verify().await.expect("held");
    }
    replica.cont();
    for guard in guards {
        guard.release_held().await;
    }
    no_lock_is_left(&primary).await;
}

#[tokio::test]
async fn each_master_of_a_cluster_has_its_own_replica() {
    let cluster = Cluster::start();
    let (one, other) = (
        connect(&cluster.url(), 1, SECOND).await,
        connect(&cluster.url(), 1, SECOND).await,
    );
    for number in 0..10 {
        let key = format!("k{number}");
        let guard = one.acquire_free(&*key, options()).await;
        let (own, wanted) = (other.clone(), key.clone());
        let waiting = tokio::spawn(async move { own.acquire(wanted, options()).await });
        guard.release_held().await;
        granted(waiting).await.release_held().await;
    }
    let master = cluster.master_of("lock:k");
    cluster.replica_of("lock:k").stop();
    let refused = one.acquire("k", options().wait(SECOND * 2)).await;
    assert!(is_short_of_replicas(&refused), "{refused:?}");
    no_lock_is_left(master).await;
    cluster.cont();
    cluster.whole();
    let long = LockOptions::new(SECOND * 60);
    let guard = one.acquire("k", long).await.expect("free again");
    let killed = cluster.kill_master_of("lock:k");
    cluster.failed_over(killed);
    eventually!(HANG, "the new master knows it" => guard.lease().verify().await.is_ok());
    guard.release().await.ok();
}

#[tokio::test]
async fn users_without_scripts_wait_for_replicas_too() {
    let (primary, replica) = with_a_replica().await;
    primary.add_user_without_scripts();
    let locks = connect(&primary.url_without_scripts(), 1, SECOND).await;
    let guard = locks.acquire_free("k", options()).await;
    assert_eq!(replica.get("lock:k"), primary.get("lock:k"));
    guard.release_held().await;
    replica.stop();
    let refused = locks.acquire("k", options().no_wait()).await;
    assert!(is_short_of_replicas(&refused), "{refused:?}");
    no_lock_is_left(&primary).await;
    replica.cont();
    let guard = locks.acquire_free("k", options()).await;
    guard.release_held().await;
}
