//! What a lock is, the same on every kind of server.

use std::time::Duration;

use lock_core::{LeaseLost, LockError, LockGuard, LockManager, LockOptions};
use lock_tests::{Kind, RedisServer, eventually, on_every_kind};
use tokio::time::timeout;

const HANG: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);

on_every_kind! { start:
    a_lock_excludes_until_it_is_released
    a_waiter_is_granted_the_lock
    a_lease_is_renewed_beyond_its_ttl
    a_deleted_key_is_a_lost_lease
    a_holder_takes_its_key_again
    fencing_tokens_grow_though_the_data_are_lost
}

#[test]
fn every_kind_is_what_it_is_called() {
    for (kind, version, compares_and_deletes) in [
        (Kind::Redis62, "redis_version:6.2.", None),
        (
            Kind::Redis86,
            "redis_version:8.6.",
            Some(["DELEX", "k", "IFEQ", "v"].as_slice()),
        ),
        (
            Kind::Valkey9,
            "valkey_version:9.",
            Some(&["DELIFEQ", "k", "v"]),
        ),
    ] {
        let server = RedisServer::builder().kind(kind).start();
        let info = server.info("server");
        assert!(info.contains(version), "{kind:?}: {info}");
        if let Some(command) = compares_and_deletes {
            server.cli(&["SET", "k", "v"]);
            server.cli(command);
            assert_eq!(server.get("k"), None, "{kind:?}");
        }
    }
}

fn start(kind: Kind) -> RedisServer {
    RedisServer::builder().kind(kind).start()
}

fn options() -> LockOptions {
    LockOptions::new(SECOND * 10).wait(HANG)
}

async fn connect(server: &RedisServer) -> LockManager {
    LockManager::connect(&server.url())
        .await
        .expect("the server is up")
}

async fn acquire(locks: &LockManager, options: LockOptions) -> LockGuard {
    timeout(HANG, locks.acquire("k", options))
        .await
        .expect("no hang")
        .expect("free, or soon")
}

fn fencing_token(guard: &LockGuard) -> u64 {
    guard.lease().fencing_token().into()
}

async fn a_lock_excludes_until_it_is_released(server: &RedisServer) {
    let (locks, others) = (connect(server).await, connect(server).await);
    let guard = acquire(&locks, options()).await;
    assert!(
        others
            .try_acquire("k", options())
            .await
            .expect("an answer")
            .is_none()
    );
    let expiry = server.pttl("lock:k").expect("the key expires");
    assert!(expiry <= SECOND * 10, "{expiry:?}");
    guard.release().await.expect("held");
    assert_eq!(server.get("lock:k"), None);
    let guard = others.try_acquire("k", options()).await.expect("an answer");
    guard.expect("free").release().await.expect("held");
}

async fn a_waiter_is_granted_the_lock(server: &RedisServer) {
    let first = acquire(&connect(server).await, options()).await;
    let before = fencing_token(&first);
    let others = connect(server).await;
    let waiting = tokio::spawn(async move { acquire(&others, options()).await });
    eventually(HANG, "it stands in line", async || {
        !server.keys("__lock_core__:queue:*").is_empty()
    })
    .await;
    first.release().await.expect("held");
    let second = waiting.await.expect("granted");
    assert!(fencing_token(&second) > before);
    assert!(server.calls("publish") > 0, "by a message");
    second.lease().verify().await.expect("held");
    second.release().await.expect("held");
}

async fn a_lease_is_renewed_beyond_its_ttl(server: &RedisServer) {
    let ttl = SECOND * 3 / 2;
    let guard = acquire(&connect(server).await, LockOptions::new(ttl)).await;
    let token = server.get("lock:k");
    let end = server_time(server) + ttl * 3;
    eventually(HANG, "three ttls are over", async || {
        assert_eq!(server.get("lock:k"), token, "nobody else gets it");
        server_time(server) > end
    })
    .await;
    guard.lease().verify().await.expect("held");
    guard.release().await.expect("held");
}

fn server_time(server: &RedisServer) -> Duration {
    let (seconds, micros): (u64, u64) =
        redis::from_redis_value(server.cli(&["TIME"])).expect("two numbers");
    Duration::from_secs(seconds) + Duration::from_micros(micros)
}

async fn a_deleted_key_is_a_lost_lease(server: &RedisServer) {
    let guard = acquire(&connect(server).await, LockOptions::new(SECOND * 3)).await;
    server.cli(&["DEL", "lock:k"]);
    let reason = timeout(HANG, guard.lease().lost()).await.expect("noticed");
    assert_eq!(reason, LeaseLost::TakenAway);
    let released = guard.release().await;
    assert!(
        matches!(released, Err(LockError::Lost { .. })),
        "{released:?}"
    );
    assert_eq!(server.get("lock:k"), None, "it is not made anew");
}

async fn a_holder_takes_its_key_again(server: &RedisServer) {
    let locks = connect(server).await;
    locks
        .run("k", options(), async |lease| {
            let again = acquire(&locks, options()).await;
            assert_eq!(again.lease().fencing_token(), lease.fencing_token());
            again.release().await.expect("held");
            lease.verify().await.expect("the first one has it still");
        })
        .await
        .expect("free");
    assert_eq!(server.get("lock:k"), None);
}

async fn fencing_tokens_grow_though_the_data_are_lost(server: &RedisServer) {
    let locks = connect(server).await;
    let mut last = 0;
    for round in 0..6 {
        if round % 2 == 1 {
            server.cli(&["FLUSHALL"]);
        }
        // Its process knows the last token; a new one knows nothing.
        for locks in [&locks, &connect(server).await] {
            let guard = acquire(locks, options()).await;
            let next = fencing_token(&guard);
            assert!(next > last, "{next} after {last}");
            last = next;
            guard.release().await.expect("held");
        }
    }
}
