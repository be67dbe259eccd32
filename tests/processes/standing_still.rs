//! Servers and processes that stand still for a while, and then go on.

use std::{
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use lock_core::{LockManager, LockOptions};
use lock_tests::{
    AcquireFree as _, HANG, Holders, Load, RedisServer, ReleaseHeld as _, SECOND, eventually,
    history::{History, Moment, Step},
};
use tokio::time::timeout;

async fn connect(server: &RedisServer) -> LockManager {
    let locks = LockManager::builder().command_timeout(SECOND);
    locks.connect(&server.url()).await.expect("up")
}

fn holders(server: &RedisServer, load: &Load) -> Holders {
    Holders::start(env!("CARGO_BIN_EXE_holder"), &server.url(), load)
}

/// One key that two processes with one task each want.
fn one_key(ttl: Duration, hold: Duration) -> Load {
    Load {
        keys: vec!["k".to_owned()],
        processes: 2,
        tasks: 1,
        ttl,
        hold,
    }
}

/// The process that got the lock last, and the number of its attempt.
fn last_holder(history: &History) -> Option<(u32, u64)> {
    let mut events = history.events().iter().rev();
    let granted = events.find(|event| matches!(event.step, Step::Acquired { .. }))?;
    Some((granted.process, granted.attempt))
}

fn assert_in_order(history: &History) {
    let (overlaps, regressions) = (history.overlaps(&[]), history.regressions(&[]));
    assert!(overlaps.is_empty(), "{overlaps:#?}");
    assert!(regressions.is_empty(), "{regressions:#?}");
}

#[tokio::test]
async fn a_server_that_pauses_for_longer_than_a_command_may_take_costs_neither_lease_nor_lock() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let options = LockOptions::new(SECOND * 20).wait(HANG);
    let held = locks.acquire_free("held", options.clone()).await;
    server.cli(&["CLIENT", "PAUSE", "3000", "ALL"]);
    // The lock is asked for several times meanwhile, and granted once.
    let guard = timeout(HANG, locks.acquire("k", options.clone()))
        .await
        .expect("no hang")
        .expect("free");
    // The future is dropped while the server may still have the request.
    server.cli(&["CLIENT", "PAUSE", "3000", "ALL"]);
    let dropped = timeout(Duration::from_millis(500), locks.acquire("d", options)).await;
    assert!(dropped.is_err(), "it answers no request");
    eventually(
        SECOND * 15,
        "what was dropped is gone before its ttl",
        async || locks.check().await.is_ok() && server.get("lock:d").is_none(),
    )
    .await;
    held.lease().verify().await.expect("held");
    guard.release_held().await;
    held.release_held().await;
    eventually!(HANG, "nothing is left" => server.keys("lock:*").is_empty());
}

#[tokio::test]
async fn what_a_server_does_after_its_client_has_gone_is_undone_before_the_ttl() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let options = LockOptions::new(HANG);
    // After this the server knows the scripts, and the next acquire takes the usual path.
    let guard = locks.acquire_free("k", options.clone()).await;
    guard.release_held().await;
    server.stop();
    let acquire = locks.acquire("k", options);
    assert!(timeout(Duration::from_millis(100), acquire).await.is_err());
    drop(locks);
    server.cont();
    eventually(HANG / 2, "the lock was taken, and is gone", async || {
        server.calls("set") + server.calls("psetex") >= 2 && server.get("lock:k").is_none()
    })
    .await;
}

#[tokio::test]
async fn a_server_that_is_slow_again_and_again_costs_no_lease() {
    let server = RedisServer::start();
    // With the default time-outs, a server that is this slow must not count as dead.
    let locks = LockManager::connect(&server.url()).await.expect("up");
    let held = locks
        // The ttl is long enough that a renewal waits for longer than the server sleeps, on a busy machine too. A renewal
        // waits a tenth of the ttl, at most half a second. The ttl is also short enough for several renewals.
        .acquire_free("k", LockOptions::new(SECOND * 6))
        .await;
    let token = server.get("lock:k");
    let url = server.url();
    let slow = tokio::task::spawn_blocking(move || {
        let client = redis::Client::open(url).expect("a url");
        let mut connection = client.get_connection().expect("up");
        for _ in 0..18 {
            let _slept: () = redis::cmd("DEBUG")
                .arg("SLEEP")
                .arg("0.4")
                .query(&mut connection)
                .expect("it sleeps");
            thread::sleep(Duration::from_millis(100));
        }
    });
    slow.await.expect("no panic");
    assert!(!held.lease().is_lost());
    assert_eq!(server.get("lock:k"), token, "no other process had it");
    held.lease().verify().await.expect("held");
    held.release_held().await;
}

#[tokio::test]
async fn a_process_that_is_stopped_beyond_its_ttl_takes_no_step_when_it_goes_on() {
    let server = RedisServer::start();
    // The hold is so long that the process is stopped inside its body, although the test learns late that the body began.
    let (ttl, hold) = (SECOND, SECOND * 4);
    let mut holders = holders(&server, &one_key(ttl, hold));
    for _ in 0..3 {
        // The stop is in the middle of a body; the body's lease is over when the process goes on.
        let since = Moment::now();
        let (stopped, attempt) = holds(&mut holders, since).await;
        let from = Moment::now();
        holders.processes()[stopped as usize].stop();
        let next = |history: &History| {
            let next = last_holder(history).is_some_and(|(process, _)| process != stopped);
            next && Moment::now().since(from) > hold
        };
        eventually!(HANG, "the other one has it, and time went by" => next(holders.history()));
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
    assert_in_order(&holders.stop());
}

/// Waits until some process is in a body that began after a point in time.
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
async fn a_process_that_is_killed_blocks_the_others_for_its_ttl() {
    let server = RedisServer::start();
    let ttl = SECOND * 2;
    let mut holders = holders(&server, &one_key(ttl, Duration::from_millis(300)));
    let (killed, _) = holds(&mut holders, Moment::now()).await;
    holders.processes()[killed as usize].kill9();
    let from = Moment::now();
    eventually(HANG, "the other one has it", async || {
        last_holder(holders.history()).is_some_and(|(process, _)| process != killed)
    })
    .await;
    // The other process releases and acquires in turn, so the key may be absent for a moment.
    let mut left = None;
    eventually(HANG, "it is held", async || {
        left = server.pttl("lock:k");
        left.is_some()
    })
    .await;
    assert!(left <= Some(ttl), "{left:?}");
    let history = holders.history();
    let granted = history.events().iter().find(|event| {
        event.at > from && event.process != killed && matches!(event.step, Step::Acquired { .. })
    });
    assert!(granted.is_some());
    assert_in_order(history);
}

#[tokio::test]
async fn processes_that_get_hardly_any_time_exclude_each_other() {
    let server = RedisServer::start();
    let mut load = one_key(SECOND, Duration::from_millis(5));
    load.tasks = 4;
    let mut holders = holders(&server, &load);
    holders.all_get_it(5, Moment::from_nanos(1), HANG).await;
    for process in holders.processes() {
        let id = process.id().to_string();
        let reniced = Command::new("renice")
            .args(["-n", "19", "-p", &id])
            .output();
        assert!(reniced.expect("a program of util-linux").status.success());
    }
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let end = Instant::now() + SECOND * 4;
        while Instant::now() < end {
            thread::sleep(Duration::from_millis(50));
        }
        over.store(true, Ordering::Relaxed);
    });
    let calm = Moment::now();
    holders.all_get_it(5, calm, HANG).await;
    assert_in_order(&holders.stop());
}
