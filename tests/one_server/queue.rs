//! The queue of a key on the server: places, beats, and their cost.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use lock_core::LockOptions;
use lock_tests::{
    AcquireFree as _, HANG, RedisServer, ReleaseHeld as _, SECOND, connect, eventually, patient,
    scripts::ACQUIRE,
};
use redis::Value;

const CLOCK: &str = "__lock_core__:clock";
const QUEUE: &str = "__lock_core__:waiters:lock:k";
const BEATS: &str = "__lock_core__:beats:lock:k";
const HOLDERS: &str = "__lock_core__:holders:lock:k";
const PERMITS: &str = "__lock_core__:seats:lock:k";
const RESULT: &str = "__lock_core__:result:lock:k";

/// The score of an exclusive entry is its place plus this.
const BAND: u64 = 4_500_000_000_000_000;

/// Returns the server's time in microseconds.
fn now(server: &RedisServer) -> u64 {
    let (seconds, micros): (u64, u64) =
        redis::from_redis_value(server.cli(&["TIME"])).expect("a time");
    seconds * 1_000_000 + micros
}

/// Adds an exclusive entry to the queue, at this place.
fn add(server: &RedisServer, place: &str, entry: &str) {
    let place: u64 = place.parse().expect("a place");
    let score = (place + BAND).to_string();
    server.cli(&["ZADD", QUEUE, &score, entry]);
}

/// Sends a request that waits, and returns its place.
fn check(server: &RedisServer, entry: &str, token: &str, place: &str) -> u64 {
    let reply = server.cli(&[
        "EVAL", ACQUIRE, "7", "lock:k", CLOCK, QUEUE, BEATS, HOLDERS, PERMITS, RESULT, token,
        "60000", "0", "1", place, entry,
    ]);
    let Value::Array(reply) = reply else {
        panic!("not a list: {reply:?}");
    };
    let [Value::Int(0), Value::Int(_), Value::Int(place), ..] = reply[..] else {
        panic!("not busy: {reply:?}");
    };
    u64::try_from(place).expect("a place")
}

/// The process that wrote the entry was stopped before its first check: it is subscribed, and sends nothing.
#[tokio::test]
async fn an_entry_that_was_never_checked_is_alive_for_two_beats() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    let client = redis::Client::open(server.url()).expect("a url");
    let mut listener = client.get_connection().expect("it is up");
    let mut listener = listener.as_pubsub();
    listener
        .subscribe("__lock_core__:grants:stopped")
        .expect("it is up");
    // Ages in microseconds. The second is in the future, so that the entry is recent even on a slow machine.
    for (age, is_granted) in [(3_000_000, false), (-60_000_000, true)] {
        let guard = locks.acquire_free("k", patient()).await;
        let place = now(&server).saturating_add_signed(-age).to_string();
        let entry = "stopped 1 60000 x lc1:web/1:00";
        add(&server, &place, entry);
        guard.release_held().await;
        let holder = server.get("lock:k");
        assert_eq!(holder.is_some(), is_granted, "{age}: {holder:?}");
    }
}

/// An entry that was checked recently is alive, however old it is.
#[tokio::test]
async fn a_check_keeps_an_entry_alive_and_removes_old_beats() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    let guard = locks.acquire_free("k", patient()).await;
    let long_ago = (now(&server) - 60_000_000).to_string();
    server.cli(&["ZADD", BEATS, &long_ago, "gone 7 60000 x lc1:web/7:00"]);
    let place = check(&server, "ch 1 60000 x", "lc1:web/1:00", &long_ago);
    assert_eq!(place.to_string(), long_ago, "it keeps its place");
    assert_eq!(server.queue(BEATS), ["ch 1 60000 x lc1:web/1:00"]);
    let expiry = server.pttl(BEATS).expect("it expires");
    assert!(expiry < SECOND * 3, "{expiry:?}");
    let mut listener = redis::Client::open(server.url())
        .and_then(|client| client.get_connection())
        .expect("it is up");
    let mut listener = listener.as_pubsub();
    listener.subscribe("__lock_core__:grants:ch").expect("up");
    guard.release_held().await;
    assert_eq!(server.get("lock:k").as_deref(), Some("lc1:web/1:00"));
}

/// Otherwise all later requests would overtake the earlier ones until the clock has caught up.
#[tokio::test]
async fn after_the_clock_was_set_back_a_place_in_the_future_is_replaced() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    let guard = locks.acquire_free("k", patient()).await;
    let hour_ahead = (now(&server) + 3_600_000_000).to_string();
    add(&server, &hour_ahead, "ch 1 60000 x lc1:web/1:00");
    let place = check(&server, "ch 1 60000 x", "lc1:web/1:00", &hour_ahead);
    assert!(place <= now(&server), "{place}");
    let later = check(&server, "ch 2 60000 x", "lc1:web/2:00", "wait");
    assert!(place < later);
    assert_eq!(
        server.queue(QUEUE),
        ["ch 1 60000 x lc1:web/1:00", "ch 2 60000 x lc1:web/2:00"]
    );
    guard.release_held().await;
}

/// The first process in the queue also checks when the holder's lease must have ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_process_checks_once_a_second_whatever_the_ttl() {
    const WAITING: usize = 8;
    let server = RedisServer::start();
    let short = LockOptions::new(Duration::from_millis(900)).wait(HANG);
    let guard = connect(&server.url())
        .await
        .acquire_free("k", short.clone())
        .await;
    let mut waiting = Vec::new();
    for _ in 0..WAITING {
        let locks = connect(&server.url()).await;
        let short = short.clone();
        waiting.push(tokio::spawn(async move {
            let guard = locks.acquire("k", short).await.expect("its turn");
            guard.release_held().await;
        }));
    }
    let beats = || -> Vec<(String, u64)> {
        let beats = server.cli(&["ZRANGE", BEATS, "0", "-1", "WITHSCORES"]);
        redis::from_redis_value(beats).expect("a sorted set")
    };
    // Each check writes another beat.
    let (mut seen, since) = (BTreeSet::new(), Instant::now());
    let mut queue = Vec::new();
    eventually(HANG, "each has checked a few times", async || {
        seen.extend(beats());
        queue = server.queue(QUEUE);
        let of = |entry: &str| seen.iter().filter(|(other, _)| other == entry).count();
        queue.len() == WAITING && queue.iter().all(|entry| of(entry) >= 4)
    })
    .await;
    let seconds = since.elapsed().as_secs();
    let first = &queue[0];
    for entry in &queue[1..] {
        let checks: Vec<u64> = seen
            .iter()
            .filter(|(other, _)| other == entry)
            .map(|(_, beat)| *beat)
            .collect();
        // The first check after joining is sooner.
        for pair in checks[1..].windows(2) {
            let pause = pair[1] - pair[0];
            assert!(
                pause >= 950_000,
                "a check {pause} µs after the one before, within {seconds} s"
            );
        }
    }
    assert!(seen.iter().any(|(entry, _)| entry == first));
    drop(guard);
    for task in waiting {
        task.await.expect("no panic");
    }
}
