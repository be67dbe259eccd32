//! The queue of a key on the server: places, beats, and what keeps an entry alive.

use lock_tests::{
    AcquireFree as _, RedisServer, ReleaseHeld as _, SECOND, connect, patient, scripts::ACQUIRE,
};
use redis::Value;

use crate::stopped_waiter::{QUEUE, Stopped};

const CLOCK: &str = "__lock_core__:clock";
const BEATS: &str = "__lock_core__:beats:lock:k";
const HOLDERS: &str = "__lock_core__:holders:lock:k";
const PERMITS: &str = "__lock_core__:seats:lock:k";
const RESULT: &str = "__lock_core__:result:lock:k";

/// The score of an exclusive entry is its place plus this.
const BAND: u64 = 4_500_000_000_000_000;

/// Returns the server's time in microseconds.
fn now(server: &RedisServer) -> u64 {
    server
        .time()
        .as_micros()
        .try_into()
        .expect("it fits for 500,000 years")
}

/// Adds an exclusive entry to the queue, at this place.
fn add(server: &RedisServer, place: u64, entry: &str) {
    let score = (place + BAND).to_string();
    server.cli(&["ZADD", QUEUE, &score, entry]);
}

/// Sends a request that waits, and returns its place. Without an earlier place, it joins the queue.
fn check(server: &RedisServer, entry: &str, token: &str, place: Option<u64>) -> u64 {
    let place = place.map_or_else(|| "wait".to_owned(), |place| place.to_string());
    let reply = server.cli(&[
        "EVAL", ACQUIRE, "7", "lock:k", CLOCK, QUEUE, BEATS, HOLDERS, PERMITS, RESULT, token,
        "60000", "0", "1", &place, entry,
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
    let _stopped = Stopped::subscribed(&server);
    // Ages in microseconds. The second is in the future, so that the entry is recent even on a slow machine.
    for (age, is_granted) in [(3_000_000, false), (-60_000_000, true)] {
        let guard = locks.acquire_free("k", patient()).await;
        let place = now(&server).saturating_add_signed(-age);
        add(&server, place, "stopped 1 60000 x lc1:web/1:00");
        guard.release_held().await;
        let has_it = Stopped::has_it(&server);
        assert_eq!(has_it, is_granted, "{age}: {:?}", server.get("lock:k"));
    }
}

/// An entry that was checked recently is alive, however old it is.
#[tokio::test]
async fn a_check_keeps_an_entry_alive_and_removes_old_beats() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    let guard = locks.acquire_free("k", patient()).await;
    let long_ago = now(&server) - 60_000_000;
    server.cli(&[
        "ZADD",
        BEATS,
        &long_ago.to_string(),
        "gone 7 60000 x lc1:web/7:00",
    ]);
    let place = check(&server, "stopped 1 60000 x", "lc1:web/1:00", Some(long_ago));
    assert_eq!(place, long_ago, "it keeps its place");
    assert_eq!(server.queue(BEATS), ["stopped 1 60000 x lc1:web/1:00"]);
    let expiry = server.pttl(BEATS).expect("it expires");
    assert!(expiry < SECOND * 3, "{expiry:?}");
    let _stopped = Stopped::subscribed(&server);
    guard.release_held().await;
    assert!(Stopped::has_it(&server), "{:?}", server.get("lock:k"));
}

/// Otherwise all later requests would overtake the earlier ones until the clock has caught up.
#[tokio::test]
async fn after_the_clock_was_set_back_a_place_in_the_future_is_replaced() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    let guard = locks.acquire_free("k", patient()).await;
    let hour_ahead = now(&server) + 3_600_000_000;
    add(&server, hour_ahead, "ch 1 60000 x lc1:web/1:00");
    let place = check(&server, "ch 1 60000 x", "lc1:web/1:00", Some(hour_ahead));
    assert!(place <= now(&server), "{place}");
    let later = check(&server, "ch 2 60000 x", "lc1:web/2:00", None);
    assert!(place < later);
    assert_eq!(
        server.queue(QUEUE),
        ["ch 1 60000 x lc1:web/1:00", "ch 2 60000 x lc1:web/2:00"]
    );
    guard.release_held().await;
}
