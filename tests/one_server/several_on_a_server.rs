//! Several keys at once on a real server: each way out frees all of them, and the loss of one is the loss of all.

use std::{future::pending, sync::Arc, time::Duration};

use lock_core::{Lease, LeaseLost, LockError};
use lock_tests::{
    Direction, Proxy, RedisServer, ReleaseHeld as _, connect, connect_with_time_out, eventually,
};
use tokio::{sync::oneshot, time::timeout};

use crate::ways_out::{SOON, TTL, becomes_free, options};

#[tokio::test]
async fn an_acquire_that_is_dropped_in_flight_leaves_no_lock() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let locks = connect(&proxy.url()).await;
    proxy.delay(Direction::Requests, Duration::from_millis(10));
    let before = server.calls("set");
    let mut had_all = 0;
    // Each is dropped 3 ms later than the one before: the requests of all keys take 30 ms, and longer on a busy machine.
    for number in 0..40 {
        let keys = ["a", "b", "c"].map(|key| format!("{key}{number}"));
        let acquire = locks.acquire_all(keys, options());
        let acquired = timeout(Duration::from_millis(3 * number), acquire).await;
        had_all += u64::from(acquired.is_ok());
    }
    // The first request of each has been sent. Others were sent only by those that were dropped between two keys.
    let least = before + 3 * had_all + (40 - had_all);
    eventually!(SOON, "some were dropped between two keys" => server.calls("set") > least);
    eventually(SOON, "no lock is left", async || {
        let checked = locks.check().await;
        checked.expect("a reply after those to all earlier requests");
        server.keys("lock:*").is_empty()
    })
    .await;
}

#[tokio::test]
async fn a_key_that_is_taken_away_drops_the_body_and_frees_the_others() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    let flag = Arc::new(());
    let dropped = Arc::downgrade(&flag);
    let (entered, inside) = oneshot::channel();
    let running = tokio::spawn(async move {
        let body = |lease: Lease| async move {
            entered.send(lease).expect("a task waits");
            pending::<()>().await;
            drop(flag);
        };
        locks.run_all(["a", "b", "c"], options(), body).await
    });
    let lease = inside.await.expect("entered");
    server.cli(&["SET", "lock:b", "another's", "PX", "60000"]);
    // Verifying finds the loss sooner than the next renewal.
    lease.verify().await.expect_err("one is another's");
    let result = running.await.expect("ends");
    let Err(LockError::Lost { key, reason, .. }) = &result else {
        panic!("not lost: {result:?}");
    };
    assert_eq!((key.as_str(), *reason), ("b", LeaseLost::TakenAway));
    assert_eq!(dropped.strong_count(), 0);
    becomes_free(&server, "a").await;
    becomes_free(&server, "c").await;
    assert_eq!(server.get("lock:b").as_deref(), Some("another's"));
}

/// If the releases were sent in sequence, each would wait for the reply to the one before.
#[tokio::test]
async fn a_release_takes_one_round_trip_for_all_keys() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let locks = connect_with_time_out(TTL, &proxy.url()).await;
    let acquire = async || {
        let keys = (0..8).map(|number| format!("k{number}"));
        locks.acquire_all(keys, options()).await.expect("free")
    };
    // Afterwards the server knows the scripts, so each release is one request.
    acquire().await.release_held().await;
    let guard = acquire().await;
    assert_eq!(server.keys("lock:*").len(), 8);
    proxy.delay(Direction::Replies, TTL);
    let releasing = tokio::spawn(guard.release());
    eventually!(SOON, "all are released without a reply" => server.keys("lock:*").is_empty());
    assert!(!releasing.is_finished());
}
