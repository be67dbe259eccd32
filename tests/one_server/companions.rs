//! The companion keys of a lock on a full server, and after an eviction, a command of another client, or a step of the clock.

use std::{
    mem,
    time::{Duration, Instant},
};

use lock_core::{LockGuard, LockManager, LockOptions};
use lock_tests::{
    AcquireFree as _, AfterLoss, Direction, Frames, HANG, Proxy, RedisServer, ReleaseHeld as _,
    SECOND, ShiftedClock, connect, eventually, nothing_is_left, options, patient,
};
use redis::Value;

use crate::stopped_waiter::QUEUE;

const LOCK: &str = "lock:k";
const CLOCK: &str = "__lock_core__:clock";
const BEATS: &str = "__lock_core__:beats:lock:k";
const HOLDERS: &str = "__lock_core__:holders:lock:k";
const PERMITS: &str = "__lock_core__:seats:lock:k";

const TTL: Duration = Duration::from_secs(6);

/// Takes a lease in each mode, each on a key of its own.
async fn in_each_mode(locks: &LockManager) -> [LockGuard; 3] {
    let options = LockOptions::new(TTL);
    [
        locks.acquire_free("exclusive", options.clone()).await,
        locks.acquire_free("shared", options.clone().shared()).await,
        locks.acquire_free("permits", options.permits(2)).await,
    ]
}

/// Waits for longer than a ttl, and checks that each lease was renewed.
async fn are_renewed(guards: &[LockGuard]) {
    let end = Instant::now() + TTL + SECOND;
    eventually!(HANG, "more than a ttl is over" => Instant::now() > end);
    for guard in guards {
        let verified = guard.lease().verify().await;
        verified.unwrap_or_else(|error| panic!("{}: {error}", guard.key()));
    }
}

#[tokio::test]
async fn a_full_server_keeps_the_leases_of_each_mode() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    let guards = in_each_mode(&locks).await;
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    are_renewed(&guards).await;
    for guard in guards {
        guard.release_held().await;
    }
    // The process keeps its share for a second.
    nothing_is_left(&server).await;
}

#[tokio::test]
async fn a_queue_of_another_type_costs_no_lease_in_any_mode() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    let guards = in_each_mode(&locks).await;
    for guard in &guards {
        let queue = format!("__lock_core__:waiters:lock:{}", guard.key());
        server.cli(&["SET", &queue, "not a queue"]);
    }
    are_renewed(&guards).await;
    for guard in guards {
        guard.release_held().await;
    }
}

#[tokio::test]
async fn a_lock_is_released_although_the_fencing_clock_has_another_type() {
    let server = RedisServer::start();
    let (locks, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let guard = locks.acquire_free("k", patient()).await;
    let waiting = tokio::spawn(async move { other.acquire("k", patient().wait(HANG)).await });
    eventually!(HANG, "it is in the queue" => !server.queue(QUEUE).is_empty());
    server.cli(&["DEL", CLOCK]);
    server.cli(&["RPUSH", CLOCK, "not a clock"]);
    guard.release_held().await;
    // The ttl is ten seconds.
    assert_eq!(server.get(LOCK), None, "it is free at once");
    let error = waiting.await.expect("no panic").expect_err("no token");
    let advice = format!("DEL {CLOCK}");
    assert!(format!("{error:?}").contains(&advice), "{error:?}");
    server.cli(&["DEL", CLOCK]);
    locks
        .acquire_free("k", patient())
        .await
        .release_held()
        .await;
}

#[tokio::test]
async fn holders_that_enter_after_an_eviction_leave_keys_that_expire() {
    let server = RedisServer::start();
    let (early, late) = (connect(&server.url()).await, connect(&server.url()).await);
    let first = early.acquire_free("k", options().shared()).await;
    server.cli(&["DEL", HOLDERS]);
    let second = late.acquire_free("k", options().shared()).await;
    let expiry = server.pttl(HOLDERS);
    assert!(
        expiry.is_some(),
        "the entry of a process that dies would stay"
    );
    drop((first, second));
}

/// Takes a lease that is neither renewed nor released, like that of a process that died.
async fn abandoned(server: &RedisServer, options: LockOptions) {
    let locks = connect(&server.url()).await;
    let guard = locks.acquire_free("k", options.without_renewal()).await;
    mem::forget((guard, locks));
}

#[tokio::test]
async fn a_lock_that_lost_its_expiry_is_free_after_its_last_holder() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    let options = LockOptions::new(SECOND * 4).wait(HANG);
    for (held, wanted) in [
        (options.clone().permits(1), options.clone().permits(1)),
        (options.clone().shared(), options.clone()),
    ] {
        abandoned(&server, held).await;
        assert_eq!(server.cli(&["PERSIST", LOCK]), Value::Int(1));
        eventually!(HANG, "the lease has ended" => server.pttl(HOLDERS).is_none());
        let guard = locks.acquire("k", wanted).await;
        guard.expect("no holder is left").release_held().await;
    }
}

#[tokio::test]
async fn after_the_clock_was_set_back_readers_wait_for_an_earlier_writer() {
    const BAND: f64 = 4.5e15;
    let clock = ShiftedClock::new();
    clock.set_ahead(SECOND * 3600);
    let server = RedisServer::builder().clock(&clock).start();
    let connected = async || connect(&server.url()).await;
    let [reader, writer, late] = [connected().await, connected().await, connected().await];
    let queued = async |length| {
        eventually!(HANG, "it is in the queue" => server.queue(QUEUE).len() == length);
    };
    let wait = |locks: LockManager, options: LockOptions| {
        tokio::spawn(async move { locks.acquire_free("k", options.wait(HANG)).await })
    };
    let guard = reader.acquire_free("k", patient().shared()).await;
    // The reader holds its share, and no other task of its process joins it.
    let writing = wait(writer, patient());
    queued(1).await;
    clock.set_right();
    let reading = wait(late, patient().shared());
    eventually(HANG, "the cut is not ahead of the clock", async || {
        let cut = server.cli(&["ZSCORE", BEATS, "#"]);
        let cut: Option<f64> = redis::from_redis_value(cut).expect("a score");
        cut.is_some_and(|cut| cut - BAND <= server.time().as_secs_f64() * 1e6)
    })
    .await;
    assert!(!reading.is_finished(), "it overtook the writer");
    guard.release_held().await;
    let alone = writing.await.expect("its turn");
    assert!(
        !reading.is_finished(),
        "it runs at the same time as the writer"
    );
    alone.release_held().await;
    reading.await.expect("its turn").release_held().await;
}

/// A new connection makes the renewals of both modes due at the same time.
#[tokio::test]
async fn a_renewal_without_a_reply_does_not_delay_renewals_in_another_mode() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let locks = connect(&proxy.url()).await;
    let options = LockOptions::new(SECOND * 9);
    let exclusive = locks.acquire_free("x", options.clone()).await;
    let shared = locks.acquire_free("s", options.shared()).await;
    proxy.clear_log();
    proxy.lose(
        Direction::Replies,
        Frames::of("EVALSHA"),
        AfterLoss::Silence,
    );
    proxy.reset();
    // The keys of the requests, in their order.
    let renewed = || {
        let log = proxy.log().into_iter();
        let calls = log.filter(|request| request.command() == "EVALSHA");
        let keys = calls.filter_map(|request| request.text().get(3).cloned());
        keys.collect::<Vec<_>>()
    };
    eventually(HANG, "the second try was sent", async || {
        renewed().iter().filter(|key| *key == "lock:x").count() >= 2
    })
    .await;
    let renewed = renewed();
    let first = renewed.iter().position(|key| key == "lock:s");
    let again = renewed.iter().rposition(|key| key == "lock:x");
    assert!(
        first.is_some_and(|first| Some(first) < again),
        "{renewed:?}"
    );
    assert_eq!(server.cli(&["EXISTS", "lock:s"]), Value::Int(1));
    proxy.heal();
    drop((exclusive, shared));
}

/// The reply with the number of the permit was lost, and the numbers were evicted afterwards.
#[tokio::test]
async fn a_repeated_request_shares_no_permit_after_the_permits_were_evicted() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let (locks, others) = (connect(&server.url()).await, connect(&proxy.url()).await);
    let permits = options().permits(2);
    // The server knows the scripts from here on, so the next request is that for the permit.
    let known = others.acquire_free("other", permits.clone()).await;
    known.release_held().await;
    let first = locks.acquire_free("k", permits.clone()).await;
    assert_eq!(first.lease().permit(), Some(0));
    proxy.lose(
        Direction::Replies,
        Frames::of("EVALSHA"),
        AfterLoss::Silence,
    );
    let mut second = tokio::spawn(async move { others.acquire("k", permits.wait(HANG)).await });
    eventually!(HANG, "it has entered" => server.queue(HOLDERS).len() == 3);
    server.cli(&["DEL", PERMITS]);
    proxy.heal();
    // Either the request waits for the end of the first lease, or it gets another permit.
    let entered = tokio::time::timeout(SECOND * 4, &mut second).await;
    if let Ok(entered) = entered {
        let entered = entered.expect("no panic").expect("a permit");
        assert_ne!(entered.lease().permit(), Some(0));
        return;
    }
    first.release_held().await;
    let entered = second.await.expect("no panic").expect("a permit");
    assert_eq!(entered.lease().permit(), Some(0));
}
