//! A lock that is dropped or released too late leaves nothing on the server that blocks others.

use std::time::Duration;

use lock_core::{LockError, LockOptions};
use lock_tests::{
    AcquireFree as _, Direction, HANG, Proxy, RedisServer, ReleaseHeld as _, SECOND, assert_fails,
    connect, connect_with_time_out, eventually, nothing_is_left, patient,
};
use tokio::time::timeout;

use crate::stopped_waiter::QUEUE;

/// Returns the numbers of connections and subscriptions of the server.
fn clients(server: &RedisServer) -> (usize, usize) {
    let list: String =
        redis::from_redis_value(server.cli(&["CLIENT", "LIST", "TYPE", "normal"])).expect("text");
    let channels: Vec<String> =
        redis::from_redis_value(server.cli(&["PUBSUB", "CHANNELS"])).expect("names");
    (list.lines().count(), channels.len())
}

#[tokio::test]
async fn a_thousand_waits_that_are_dropped_at_any_time_leave_no_entry_and_no_lock() {
    let server = RedisServer::start();
    let (one, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let guard = one.acquire_free("k", patient()).await;
    let before = clients(&server);
    for round in 0..50_u64 {
        let waits = (0..20_u64).map(|number| {
            let locks = if number % 2 == 0 { &one } else { &other };
            let locks = locks.clone();
            let patience = Duration::from_micros((round * 97 + number * 311) % 4_000);
            tokio::spawn(async move {
                let wait = timeout(patience, locks.acquire("k", patient())).await;
                assert!(wait.is_err(), "it is held all the time");
            })
        });
        for wait in waits.collect::<Vec<_>>() {
            wait.await.expect("no assertion failed");
        }
    }
    // The queue expires 30 s after the last entry was added.
    eventually!(SECOND * 10, "no waiter is left" => server.queue(QUEUE).is_empty());
    guard.lease().verify().await.expect("held all the time");
    guard.release_held().await;
    assert_eq!(
        server.get("lock:k"),
        None,
        "it was granted to a task that had left"
    );
    assert_eq!(clients(&server), before, "connections and subscriptions");
}

/// The network is slow when the request is sent, and fast for the clean-up, which would arrive first on another connection.
#[tokio::test]
async fn a_clean_up_never_overtakes_what_it_cleans_up() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let locks = connect_with_time_out(SECOND * 3 / 2, &proxy.url()).await;
    let options = LockOptions::new(HANG);
    // Now all connections that the manager will use are open.
    let guard = locks.acquire_free("k", options.clone()).await;
    guard.release_held().await;
    let taken = || server.calls("set") + server.calls("psetex");
    for round in 0..5 {
        let (before, key) = (taken(), format!("k{round}"));
        // The delay is longer than the time-out of a reply, so that the clean-up after the drop gets none, and well below two
        // time-outs, after which the connection would count as dead and the request might never be executed.
        proxy.delay(Direction::Requests, Duration::from_millis(1800));
        let acquire = locks.acquire(key.as_str(), options.clone());
        assert!(timeout(Duration::from_millis(100), acquire).await.is_err());
        proxy.delay(Direction::Requests, Duration::ZERO);
        eventually(HANG / 2, "it was taken, and is free again", async || {
            taken() > before && server.get(&format!("lock:{key}")).is_none()
        })
        .await;
    }
    // A delayed request may arrive after a second one was executed and released on another connection.
    eventually(HANG / 2, "all are free again", async || {
        server.keys("lock:*").is_empty()
    })
    .await;
}

#[tokio::test]
async fn an_acquire_that_does_not_wait_sends_one_request() {
    let server = RedisServer::start();
    let (one, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let _held = one.acquire_free("k", patient()).await;
    let asked = || server.calls("evalsha") + server.calls("eval") + server.calls("set");
    // After the first round, the server knows the scripts.
    for round in 0..2 {
        let before = asked();
        let tried = other.try_acquire("k", patient()).await.expect("a reply");
        assert!(tried.is_none());
        if round > 0 {
            assert_eq!(asked() - before, 1);
        }
    }
}

#[tokio::test]
async fn a_release_after_the_end_of_the_lease_is_a_loss_and_spares_the_next_holder() {
    let server = RedisServer::start();
    let (one, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let short = LockOptions::new(SECOND * 3).without_renewal();
    let late = one.acquire_free("k", short).await;
    let next = other.acquire("k", patient()).await.expect("expired");
    let theirs = server.get("lock:k");
    let released = late.release().await;
    assert_fails!(released, LockError::Lost { .. });
    assert_eq!(server.get("lock:k"), theirs);
    next.lease().verify().await.expect("held");
}

#[tokio::test]
async fn connections_that_are_reset_all_the_time_lose_no_request_and_leave_nothing() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let locks = connect(&proxy.url()).await;
    let started = std::time::Instant::now();
    let over = std::cell::Cell::new(false);
    let resets = async {
        let mut pauses = (0..).map(|number: u64| Duration::from_millis(50 + number * 37 % 250));
        while !over.get() {
            proxy.reset();
            tokio::time::sleep(pauses.next().expect("endless")).await;
        }
    };
    let takes = async {
        let (mut times, mut last) = (0, 0);
        while started.elapsed() < SECOND * 4 || times <= 10 {
            // With this ttl, no lock that is left would expire during the test.
            let long = LockOptions::new(HANG * 10).wait(HANG);
            let guard = locks.acquire("k", long).await;
            let guard = guard.expect("repeated until its wait is over");
            let token = u64::from(guard.lease().fencing_token());
            assert!(token > last, "{token} after {last}");
            last = token;
            times += 1;
            // Without a reply, the release continues in the background.
            drop(guard.release().await);
        }
        over.set(true);
    };
    let both = async { tokio::join!(takes, resets) };
    timeout(HANG, both).await.expect("no hang");
    nothing_is_left(&server).await;
}
