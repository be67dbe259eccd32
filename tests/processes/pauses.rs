//! Servers and processes that are stopped for a while, and processes that are killed.

use std::time::Duration;

use lock_core::LockOptions;
use lock_tests::{
    AcquireFree as _, HANG, Holders, Load, Proxy, RedisServer, ReleaseHeld as _, SECOND,
    connect_with_time_out, eventually,
    history::{History, Moment, Step},
};
use redis::Value;

fn holders(server: &RedisServer, load: &Load) -> Holders {
    Holders::start(env!("CARGO_BIN_EXE_holder"), &server.url(), load)
}

/// Returns a load of two processes with one task each, which contend for one key.
fn one_key(ttl: Duration, hold: Duration) -> Load {
    Load {
        keys: vec!["k".to_owned()],
        processes: 2,
        tasks: 1,
        ttl,
        hold,
    }
}

/// Returns the process that got the lock last, and the number of its attempt.
fn last_holder(history: &History) -> Option<(u32, u64)> {
    let mut events = history.events().iter().rev();
    let granted = events.find(|event| matches!(event.step, Step::Acquired { .. }))?;
    Some((granted.process, granted.attempt))
}

#[tokio::test]
async fn a_request_that_runs_after_its_client_has_gone_is_undone_before_the_ttl() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let locks = connect_with_time_out(SECOND, &proxy.url()).await;
    let options = LockOptions::new(HANG);
    // After this, the server knows the scripts, and the next acquire takes the usual path.
    let guard = locks.acquire_free("k", options.clone()).await;
    guard.release_held().await;
    let taken = || server.calls("set") + server.calls("psetex");
    let before = taken();
    server.stop();
    let sent = proxy.requests("SET");
    let acquire = tokio::spawn(async move { locks.acquire("k", options).await });
    eventually!(HANG, "the request has left" => proxy.requests("SET") > sent);
    // Drops the manager, too.
    acquire.abort();
    server.cont();
    eventually!(HANG / 2, "the lock was acquired" => taken() > before);
    eventually!(HANG / 2, "the lock is gone" => server.get("lock:k").is_none());
}

#[tokio::test]
async fn a_process_that_is_stopped_beyond_its_ttl_takes_no_step_when_it_continues() {
    let server = RedisServer::start();
    // The body is long enough that the process is stopped inside it, although the test learns late that it has begun.
    let (ttl, hold) = (SECOND, SECOND * 4);
    let mut holders = holders(&server, &one_key(ttl, hold));
    for _ in 0..3 {
        // The process is stopped in the middle of a body, whose lease is over when the process continues.
        let since = Moment::now();
        let (stopped, attempt) = holds(&mut holders, since).await;
        let from = Moment::now();
        holders.processes()[stopped as usize].stop();
        let next = |history: &History| {
            let next = last_holder(history).is_some_and(|(process, _)| process != stopped);
            next && Moment::now().since(from) > hold
        };
        eventually!(HANG, "the other one has it, and the first body is due to end" => next(holders.history()));
        holders.processes()[stopped as usize].cont();
        let end = |history: &History| {
            let mut events = history.events().iter();
            let end = events.rfind(|event| {
                (event.process, event.attempt) == (stopped, attempt)
                    && !matches!(event.step, Step::Called(_) | Step::Acquired { .. })
            })?;
            Some(end.step)
        };
        eventually!(HANG, "its body has ended" => end(holders.history()).is_some());
        assert_eq!(end(holders.history()), Some(Step::Lost), "it took a step");
    }
    holders.stop().assert_in_order();
}

/// Waits until some process is in a body that began after this moment.
async fn holds(holders: &mut Holders, since: Moment) -> (u32, u64) {
    let mut found = None;
    eventually(HANG, "some process holds it", async || {
        let history = holders.history();
        let last = history.events().last();
        found = last
            .filter(|event| event.at > since && matches!(event.step, Step::Acquired { .. }))
            .map(|event| (event.process, event.attempt));
        found.is_some()
    })
    .await;
    found.expect("the wait is over")
}

#[tokio::test]
async fn a_killed_process_leaves_at_most_its_ttl_and_the_next_waiter_gets_the_lock() {
    let server = RedisServer::start();
    let ttl = SECOND * 2;
    // The process is killed in the middle of a body, however late the test learns that it has begun.
    let mut holders = holders(&server, &one_key(ttl, HANG));
    eventually!(HANG, "some process holds it" => last_holder(holders.history()).is_some());
    let (killed, _) = last_holder(holders.history()).expect("the wait is over");
    holders.processes()[killed as usize].kill9();
    // Nobody is left who could extend the lease. It may have ended already, which is -2; -1 would be a key without an expiry.
    let left = server.cli(&["PTTL", "lock:k"]);
    assert!(matches!(left, Value::Int(-2 | 0..=2_000)), "{left:?}");
    let end = |history: &History| {
        let mut events = history.events().iter();
        let end = events
            .find(|event| event.process != killed && !matches!(event.step, Step::Called(_)))?;
        Some(end.step)
    };
    eventually!(HANG, "the other one's wait has ended" => end(holders.history()).is_some());
    let end = end(holders.history());
    assert!(matches!(end, Some(Step::Acquired { .. })), "{end:?}");
    holders.history().assert_in_order();
}
