//! Several keys at once, on a real server. Every way out leaves all of them free, and the loss of one is the loss of all.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use lock_core::{Lease, LeaseLost, LockError, LockKey, LockManager, LockOptions, distributed_lock};
use lock_tests::{
    AcquireFree as _, Direction, DropFlag, Proxy, RedisServer, ReleaseHeld as _, Scope, connect,
    eventually,
};
use tokio::{sync::oneshot, task::JoinSet, time::timeout};

/// Much longer than any round trip: a lock that is free sooner was released, and did not expire.
const TTL: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(30);

fn options() -> LockOptions {
    LockOptions::new(TTL)
}

fn is_held(server: &RedisServer, key: &str) -> bool {
    server.get(&format!("lock:{key}")).is_some()
}

async fn becomes_free(server: &RedisServer, key: &str) {
    eventually(SOON, "the lock is free", async || !is_held(server, key)).await;
}

async fn becomes_held(server: &RedisServer, key: &str) {
    eventually(SOON, "the lock is held", async || is_held(server, key)).await;
}

#[tokio::test]
async fn all_keys_are_held_and_released_together() {
    #[distributed_lock(key = ["k:{a}", "k:{b}"], ttl = "60s", locks = locks, lease = lease)]
    async fn f(
        locks: &LockManager,
        server: &RedisServer,
        a: u8,
        b: u8,
    ) -> Result<usize, LockError> {
        assert!(is_held(server, "k:1") && is_held(server, "k:2"));
        lease.verify().await?;
        Ok(lease.fencing_tokens().len())
    }
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    assert_eq!(f(&locks, &server, 2, 1).await.expect("free"), 2);
    let held = server.keys("lock:*");
    assert!(
        held.is_empty(),
        "released before the function returns: {held:?}"
    );
}

#[tokio::test]
async fn two_managers_that_take_the_keys_in_both_orders_never_wait_in_a_circle() {
    let server = RedisServer::start();
    let mut tasks = JoinSet::new();
    let inside = Arc::new(AtomicBool::new(false));
    for number in 0..4 {
        let locks = connect(&server.url()).await;
        let keys = if number % 2 == 0 {
            ["a", "b"]
        } else {
            ["b", "a"]
        };
        for _ in 0..2 {
            let (locks, inside) = (locks.clone(), inside.clone());
            tasks.spawn(async move {
                let mut last = [None; 2];
                for _ in 0..50 {
                    let guard = locks.acquire_all(keys, options().wait(TTL)).await;
                    let guard = guard.expect("waits its turn");
                    assert!(!inside.swap(true, Ordering::SeqCst));
                    for (last, (_, token)) in last.iter_mut().zip(guard.lease().fencing_tokens()) {
                        assert!(
                            last.replace(token) < Some(token),
                            "the token of each key grows"
                        );
                    }
                    tokio::task::yield_now().await;
                    assert!(inside.swap(false, Ordering::SeqCst));
                    guard.release_held().await;
                }
            });
        }
    }
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no assertion failed");
    }
    assert!(server.keys("lock:*").is_empty());
}

#[tokio::test]
async fn if_one_key_is_busy_none_is_held() {
    let server = RedisServer::start();
    let (locks, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let guard = other.acquire_free("b", options()).await;
    for wait in [Duration::ZERO, Duration::from_millis(200)] {
        let acquire = locks.acquire_all(["c", "b", "a"], options().wait(wait));
        let refused = timeout(SOON, acquire).await.expect("keeps to its wait");
        let error = refused.expect_err("one is held");
        assert!(error.is_busy());
        assert_eq!(error.key(), Some(&LockKey::new("b")));
        becomes_free(&server, "a").await;
        assert!(!is_held(&server, "c"));
    }
    guard.release_held().await;
}

#[tokio::test]
async fn dropped_while_it_waits_for_a_key_it_lets_go_of_the_others() {
    let server = RedisServer::start();
    let (locks, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let _b = other.acquire_free("b", options()).await;
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move {
            locks
                .acquire_all(["b", "a"], options().wait_forever())
                .await
        }
    });
    becomes_held(&server, "a").await;
    waiting.abort();
    becomes_free(&server, "a").await;
    assert!(is_held(&server, "b"), "the other's lock is left alone");
}

#[tokio::test]
async fn dropped_while_its_requests_are_in_flight_it_leaves_no_lock() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let locks = connect(&proxy.url()).await;
    proxy.delay(Direction::Requests, Duration::from_millis(10));
    // Some are dropped while the first key is asked for, some at the second or third, some with all of them.
    let mut had_all = 0;
    for number in 0..40 {
        let keys = ["a", "b", "c"].map(|key| format!("{key}{number}"));
        let acquire = locks.acquire_all(keys, options());
        had_all += u32::from(
            timeout(Duration::from_millis(number), acquire)
                .await
                .is_ok(),
        );
    }
    assert!(had_all < 40, "some were dropped half way");
    eventually(SOON, "no lock is left", async || {
        locks.check().await.expect("all requests before it arrived");
        server.keys("lock:*").is_empty()
    })
    .await;
}

#[tokio::test]
async fn a_key_that_is_taken_away_drops_the_body_and_frees_the_others() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    let (flag, dropped) = DropFlag::new();
    let (entered, inside) = oneshot::channel();
    let running = tokio::spawn(async move {
        let body = |lease: Lease| async move {
            let _flag = flag;
            entered.send(lease).expect("a task waits");
            pending::<()>().await;
        };
        locks.run_all(["a", "b", "c"], options(), body).await
    });
    let lease = inside.await.expect("entered");
    server.cli(&["SET", "lock:b", "another's", "PX", "60000"]);
    // The check reports the loss sooner than the next renewal would.
    lease.verify().await.expect_err("one is another's");
    let result = running.await.expect("ends");
    let Err(LockError::Lost { key, reason, .. }) = &result else {
        panic!("not lost: {result:?}");
    };
    assert_eq!((key.as_str(), *reason), ("b", LeaseLost::TakenAway));
    assert!(dropped.is_true());
    becomes_free(&server, "a").await;
    becomes_free(&server, "c").await;
    assert_eq!(server.get("lock:b").as_deref(), Some("another's"));
}

#[tokio::test]
async fn a_server_that_does_not_answer_loses_all_keys() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let locks = connect(&proxy.url()).await;
    let short = LockOptions::new(Duration::from_secs(3));
    let guard = locks.acquire_all(["a", "b"], short).await.expect("free");
    proxy.black_hole(Scope::All);
    let lost = timeout(SOON, guard.lease().lost()).await;
    assert_eq!(lost.expect("not renewed"), LeaseLost::Expired);
    proxy.pass();
    drop(guard);
    let again = locks.acquire_all(["b", "a"], options()).await;
    again.expect("expired or released").release_held().await;
}

#[tokio::test]
async fn a_shutdown_releases_every_key_of_a_body() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    let (entered, inside) = oneshot::channel();
    let running = tokio::spawn({
        let locks = locks.clone();
        let body = |_| async move {
            entered.send(()).expect("a task waits");
            pending::<()>().await;
        };
        async move { locks.run_all(["a", "b"], options(), body).await }
    });
    inside.await.expect("entered");
    locks.shutdown(Duration::from_millis(50)).await;
    let held = server.keys("lock:*");
    assert!(
        held.is_empty(),
        "released before the shutdown returns: {held:?}"
    );
    let result = running.await.expect("ends");
    let Err(LockError::Lost { reason, .. }) = &result else {
        panic!("not lost: {result:?}");
    };
    assert_eq!(*reason, LeaseLost::Shutdown);
}

#[tokio::test]
async fn a_dropped_release_goes_on() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    for _ in 0..20 {
        let guard = locks
            .acquire_all(["a", "b"], options())
            .await
            .expect("free");
        // The future is polled once, so that the release is in flight, and then dropped.
        let mut release = std::pin::pin!(guard.release());
        std::future::poll_fn(|context| {
            let _first_step = release.as_mut().poll(context);
            std::task::Poll::Ready(())
        })
        .await;
    }
    becomes_free(&server, "a").await;
    becomes_free(&server, "b").await;
}

/// All releases are sent together. If they were sent in sequence, each would wait for the reply to the one before.
#[tokio::test]
async fn a_release_takes_one_round_trip_for_all_keys() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let locks = LockManager::builder()
        // The time-out is so long that no release is repeated before the test is over.
        .command_timeout(TTL)
        .connect(&proxy.url())
        .await
        .expect("the server is up");
    let acquire = async || {
        let keys = (0..8).map(|number| format!("k{number}"));
        locks.acquire_all(keys, options()).await.expect("free")
    };
    // After this the server knows the scripts, so that each release is one request.
    acquire().await.release_held().await;
    let guard = acquire().await;
    assert_eq!(server.keys("lock:*").len(), 8);
    proxy.delay(Direction::Replies, TTL);
    let releasing = tokio::spawn(guard.release());
    eventually(SOON, "all are let go, and none is answered", async || {
        server.keys("lock:*").is_empty()
    })
    .await;
    assert!(!releasing.is_finished());
}
