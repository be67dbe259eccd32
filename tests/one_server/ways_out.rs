//! Every way out of a critical section frees the lock, within one round trip, on a real server.

use std::{
    future::pending,
    sync::Arc,
    time::{Duration, Instant},
};

use lock_core::{LeaseLost, LockError, LockOptions, inspect::Holder};
use lock_tests::{
    AcquireFree as _, AfterLoss, Direction, Frames, HANG, Proxy, RedisServer, ReleaseHeld as _,
    Scope, assert_fails, connect, connect_with_time_out, eventually, reason_of_loss,
};
use tokio::time::{sleep, timeout};

/// Much longer than any round trip: a lock that is free sooner was released, and did not expire.
pub(crate) const TTL: Duration = Duration::from_secs(60);
pub(crate) const SOON: Duration = Duration::from_secs(30);

pub(crate) fn options() -> LockOptions {
    LockOptions::new(TTL)
}

fn is_held(server: &RedisServer, key: &str) -> bool {
    server.get(&format!("lock:{key}")).is_some()
}

pub(crate) async fn becomes_free(server: &RedisServer, key: &str) {
    eventually!(SOON, "the lock is free" => !is_held(server, key));
}

#[tokio::test]
async fn a_panic_in_the_body_releases() {
    let server = Arc::new(RedisServer::start());
    let locks = connect(&server.url()).await;
    let task = tokio::spawn({
        let server = server.clone();
        async move {
            let body = |_| async move {
                assert!(!is_held(&server, "k"), "this panics, since it is held");
            };
            locks.run("k", options(), body).await
        }
    });
    assert!(task.await.expect_err("panicked").is_panic());
    becomes_free(&server, "k").await;
}

#[tokio::test]
async fn a_future_dropped_while_its_acquire_is_in_flight_leaves_no_lock() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let locks = connect_with_time_out(HANG, &proxy.url()).await;
    // The server knows the scripts afterwards.
    let guard = locks.acquire_free("k", options()).await;
    guard.release_held().await;
    let before = server.calls("evalsha") + server.calls("set");
    // The delay is so long that no acquire gets its reply before it is dropped, even on a busy machine.
    proxy.delay(Direction::Requests, Duration::from_secs(5));
    for number in 0..50 {
        let acquire = locks.acquire(format!("k{number}"), options());
        assert!(
            timeout(Duration::from_millis(5), acquire).await.is_err(),
            "the request is still on its way"
        );
    }
    eventually(SOON, "all requests arrived", async || {
        server.calls("evalsha") + server.calls("set") >= before + 100
    })
    .await;
    eventually!(SOON, "no lock is left" => server.keys("lock:*").is_empty());
}

#[tokio::test]
async fn a_dropped_acquire_on_a_connection_that_dies_leaves_no_lock() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    for _ in 0..5 {
        let locks = connect(&proxy.url()).await;
        // The server knows the scripts afterwards.
        locks
            .acquire_free("k", options())
            .await
            .release_held()
            .await;
        // The server executes the acquire, and the connection ends with the reply in flight.
        proxy.lose(Direction::Replies, Frames::every(), AfterLoss::Reset);
        let mut acquire = Box::pin(locks.acquire("k", options()));
        let taken = eventually(SOON, "the lock is held", async || is_held(&server, "k"));
        tokio::select! {
            _ = &mut acquire => unreachable!("no reply arrives"),
            () = taken => {}
        }
        // The clean-up after this drop gets no reply until the proxy passes replies again.
        drop(acquire);
        proxy.heal();
        becomes_free(&server, "k").await;
    }
}

#[test]
fn a_runtime_that_is_dropped_with_its_leases_releases_them() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let locks = runtime.block_on(connect(&server.url()));
    for number in 0..20 {
        let locks = locks.clone();
        runtime.spawn(async move {
            locks
                .run(format!("k{number}"), options(), |_| pending::<()>())
                .await
        });
    }
    lock_tests::eventually_blocking(SOON, "all are held", || server.keys("lock:*").len() == 20);
    drop(runtime);
    lock_tests::eventually_blocking(SOON, "all are free", || server.keys("lock:*").is_empty());
}

#[tokio::test]
async fn a_shutdown_releases_the_locks_of_its_bodies() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    // The server holds the lock before the body begins.
    let (entered, inside) = tokio::sync::oneshot::channel();
    let running = tokio::spawn({
        let locks = locks.clone();
        let body = async move |_| {
            entered.send(()).expect("the test waits");
            pending::<()>().await;
        };
        async move { locks.run("k", options(), body).await }
    });
    inside.await.expect("entered");
    assert!(is_held(&server, "k"));
    locks.shutdown(Duration::from_millis(50)).await;
    assert!(
        !is_held(&server, "k"),
        "released before the shutdown returns"
    );
    let result = running.await.expect("ends");
    assert_eq!(reason_of_loss(result), LeaseLost::Shutdown);
    let refused = locks.acquire("k", options()).await;
    assert_fails!(refused, LockError::Unavailable { .. });
}

#[tokio::test]
async fn a_guard_dropped_outside_any_runtime_releases() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    let guard = locks.acquire_free("k", options()).await;
    drop(locks);
    std::thread::spawn(move || drop(guard))
        .join()
        .expect("no panic");
    becomes_free(&server, "k").await;
}

#[tokio::test]
async fn a_dropped_release_continues() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    for _ in 0..50 {
        let guard = locks.acquire_free("k", options()).await;
        // The future is polled once, so that the release is in flight, and then dropped.
        let mut release = std::pin::pin!(guard.release());
        std::future::poll_fn(|context| {
            let _first_step = release.as_mut().poll(context);
            std::task::Poll::Ready(())
        })
        .await;
    }
    becomes_free(&server, "k").await;
}

#[tokio::test]
async fn a_lease_that_is_lost_drops_the_body() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    let flag = Arc::new(());
    let dropped = Arc::downgrade(&flag);
    let running = tokio::spawn(async move {
        let options = LockOptions::new(Duration::from_secs(6));
        let body = |_| async move {
            pending::<()>().await;
            drop(flag);
        };
        locks.run("k", options, body).await
    });
    eventually(SOON, "the lock is held", async || is_held(&server, "k")).await;
    server.cli(&["SET", "lock:k", "another's", "PX", "60000"]);
    let result = running.await.expect("ends");
    assert_eq!(reason_of_loss(result), LeaseLost::TakenAway);
    assert_eq!(dropped.strong_count(), 0);
    assert_eq!(
        server.get("lock:k").as_deref(),
        Some("another's"),
        "the lock of the other client is left alone"
    );
}

#[tokio::test]
async fn a_body_that_blocks_its_thread_for_longer_than_the_ttl_keeps_its_lease() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    let ttl = Duration::from_secs(4);
    let renewed = locks
        .run("k", LockOptions::new(ttl), |lease| async move {
            // The only thread of this test's runtime.
            std::thread::sleep(ttl * 3 / 2);
            lease
        })
        .await
        .expect("held all the time");
    assert_eq!(renewed.lost().await, LeaseLost::Released, "never lost");
    assert!(!is_held(&server, "k"));
}

/// With the token, a renewal or a repeated acquire that arrives after the release would prolong the lock.
#[tokio::test]
async fn a_lock_that_min_hold_keeps_no_longer_has_the_owner_token() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    let options = options().min_hold(Duration::from_secs(20));
    let body = async |_| server.get("lock:k");
    let held = locks.run("k", options, body).await.expect("free");
    let kept = server.get("lock:k").expect("it is kept");
    assert_ne!(
        held.expect("it is held"),
        kept,
        "it is no longer the owner token"
    );
    let seen = locks
        .inspect("k")
        .await
        .expect("a reply")
        .expect("it is kept");
    assert!(seen.remaining.expect("an expiry") <= Duration::from_secs(20));
    assert!(matches!(seen.holder, Holder::Ours(_)), "{seen:?}");
}

/// The lease expired while the server was out of reach. An operator may have freed the lock since, or another process may have
/// had its turn, and the server cannot tell which.
#[tokio::test]
async fn a_lock_that_an_operator_frees_in_an_outage_is_not_taken_again_for_min_hold() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let locks = connect(&proxy.url()).await;
    let kept = LockOptions::new(Duration::from_secs(1)).min_hold(Duration::from_secs(60));
    let guard = locks.acquire_free("k", kept).await;
    let lease = guard.lease();
    proxy.black_hole(Scope::All);
    let released = guard.release().await;
    assert!(released.is_err(), "{released:?}");
    let operator = connect(&server.url()).await;
    operator.force_release("k").await.expect("done");
    eventually!(SOON, "the lease is over" => lease.remaining().is_zero() && !is_held(&server, "k"));
    let calls = server.calls("evalsha");
    proxy.heal();
    eventually!(SOON, "the release arrives" => server.calls("evalsha") > calls);
    // The shutdown waits for the rest of the release.
    locks.shutdown(SOON).await;
    assert!(!is_held(&server, "k"));
}

/// This is the advice in the documentation of `min_hold` for outages.
#[tokio::test]
async fn a_ttl_longer_than_min_hold_keeps_the_lock_through_an_outage() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let locks = connect(&proxy.url()).await;
    let min_hold = Duration::from_secs(10);
    let began = Instant::now();
    let guard = locks.acquire_free("k", options().min_hold(min_hold)).await;
    proxy.black_hole(Scope::All);
    let released = guard.release().await;
    assert!(released.is_err(), "{released:?}");
    proxy.heal();
    loop {
        let is_held = is_held(&server, "k");
        let passed = began.elapsed();
        if passed >= min_hold {
            break;
        }
        assert!(is_held, "free after {passed:?}");
        sleep(Duration::from_millis(100)).await;
    }
    becomes_free(&server, "k").await;
}
