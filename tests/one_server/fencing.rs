//! Fencing tokens grow across losses of data, fail-overs, and clocks that are set back.

use std::{
    error::Error as _,
    fs,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use lock_core::{LeaseLost, LockError, LockManager, LockOptions};
use lock_tests::{
    AcquireFree as _, HANG, Proxy, RedisServer, ReleaseHeld as _, ShiftedClock, assert_fails,
    connect, eventually, nothing_is_left, patient, unavailable,
};
use tokio::time::timeout;

use crate::fencing_clock::{CLOCK, HOUR, token};

/// Returns the last token that the server issued; 0 if none.
fn issued(server: &RedisServer) -> u64 {
    server.fencing_clock(CLOCK).unwrap_or(0)
}

#[tokio::test]
async fn tokens_grow_across_a_fail_over_to_a_replica_that_lagged() {
    let (primary, replica) = (RedisServer::start(), RedisServer::start());
    let proxy = Proxy::start(primary.port());
    let (one, other) = (connect(&proxy.url()).await, connect(&proxy.url()).await);
    let mut last = token(&one).await;
    let port = primary.port().to_string();
    replica.cli(&["REPLICAOF", "127.0.0.1", &port]);
    eventually!(HANG, "the replica has the data" => issued(&replica) >= last);
    // The replica is cut off, so it gets no later write.
    replica.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    for _ in 0..50 {
        for locks in [&one, &other] {
            let next = token(locks).await;
            assert!(next > last);
            last = next;
        }
    }
    assert!(issued(&replica) < issued(&primary), "it lags");
    primary.kill9();
    replica.cli(&["REPLICAOF", "NO", "ONE"]);
    proxy.redirect_to(replica.port());
    // First a manager that knows a smaller token, and then one that knows none.
    for locks in [&one, &connect(&proxy.url()).await, &other] {
        let next = token(locks).await;
        assert!(next > last, "{next} after {last}");
        last = next;
    }
}

#[tokio::test]
async fn tokens_grow_across_a_restart_without_data() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    let mut last = 0;
    for _ in 0..3 {
        for _ in 0..20 {
            let next = token(&locks).await;
            assert!(next > last, "{next} after {last}");
            last = next;
        }
        server.kill9();
        server.restart();
        // A manager that knows no token must not get a smaller one either.
        let next = token(&connect(&server.url()).await).await;
        assert!(next > last, "{next} after {last}");
        last = next;
    }
}

/// A loss of power loses the data that the system has not written yet, while killing the process loses none. So the test
/// restores the file from before the lock was taken.
#[tokio::test]
async fn tokens_grow_across_a_loss_of_power() {
    let server = RedisServer::builder().setting("appendonly", "yes").start();
    let (one, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let before = token(&one).await;
    let folder: Vec<String> =
        redis::from_redis_value(server.cli(&["CONFIG", "GET", "dir"])).expect("a name and a path");
    let file = Path::new(&folder[1]).join("appendonlydir");
    let saved = tempfile::tempdir().expect("a temporary folder");
    copy(&file, saved.path());
    let held = one.acquire_free("k", patient()).await;
    assert!(u64::from(held.lease().fencing_token()) > before);
    server.kill9();
    copy(saved.path(), &file);
    server.restart();
    assert!(issued(&server) >= before, "the token before was written");
    assert_eq!(server.get("lock:k"), None, "the lock was not written");
    assert!(token(&other).await > held.lease().fencing_token().into());
    let reason = timeout(HANG, held.lease().lost()).await.expect("noticed");
    assert_eq!(reason, LeaseLost::TakenAway);
}

fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("a file");
        fs::copy(entry.path(), to.join(entry.file_name())).expect("copied");
    }
}

#[tokio::test]
async fn a_server_that_reloads_its_data_keeps_leases_and_tokens() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    let held = locks.acquire_free("k", patient()).await;
    server.cli(&["DEBUG", "RELOAD"]);
    held.lease().verify().await.expect("held");
    let before = held.lease().fencing_token();
    held.release_held().await;
    assert!(token(&locks).await > before.into());
}

#[tokio::test]
async fn a_clock_that_jumps_back_over_a_loss_of_data_is_noticed_by_a_process_with_a_larger_token() {
    let clock = ShiftedClock::new();
    clock.set_ahead(HOUR / 2);
    let server = RedisServer::builder().clock(&clock).start();
    let locks = connect(&server.url()).await;
    let last = token(&locks).await;
    clock.set_right();
    server.cli(&["FLUSHALL"]);
    assert!(token(&locks).await > last);
}

#[tokio::test]
async fn a_process_with_a_token_from_the_far_future_moves_no_other_process() {
    let clock = ShiftedClock::new();
    clock.set_ahead(HOUR * 24 * 365);
    let server = RedisServer::builder().clock(&clock).start();
    let misled = connect(&server.url()).await;
    let far = token(&misled).await;
    clock.set_right();
    server.cli(&["FLUSHALL"]);
    let honest = connect(&server.url()).await;
    let before = token(&honest).await;
    assert!(before < far);
    // The first request is made of plain commands, and the second is a script.
    for _ in 0..2 {
        let long = LockOptions::new(HANG * 10).wait(Duration::from_millis(100));
        // Its tokens could not grow.
        let refused = misled.acquire("k", long).await;
        assert_fails!(refused, LockError::Unavailable { .. });
        assert!(issued(&server) < far, "the fencing clock was not moved");
    }
    nothing_is_left(&server).await;
    assert!(token(&honest).await > before);
}

/// The process that grants the lock to a waiter need not have held it, and may know a smaller token than the waiter.
#[tokio::test]
async fn tokens_grow_when_an_outsider_grants_after_a_loss_of_data() {
    let server = RedisServer::start();
    for round in 0..5 {
        let (waiter, outsider) = (connect(&server.url()).await, connect(&server.url()).await);
        let before = token(&waiter).await;
        server.cli(&["FLUSHALL"]);
        server.cli(&["SET", "lock:k", "another library's", "PX", "60000"]);
        let waiting = tokio::spawn({
            let waiter = waiter.clone();
            async move { token(&waiter).await }
        });
        eventually(HANG, "it is in the wait queue", async || {
            server.keys("__lock_core__:waiters:*").len() == 1
        })
        .await;
        server.cli(&["DEL", "lock:k"]);
        drop(outsider.try_acquire("k", patient()).await);
        let after = waiting.await.expect("no panic");
        assert!(after > before, "round {round}: {after} after {before}");
        nothing_is_left(&server).await;
    }
}

#[tokio::test]
async fn a_clock_that_was_set_back_over_a_loss_of_data_is_an_error_with_the_fix() {
    let redis = RedisServer::start();
    redis.add_user_without_scripts();
    for url in [redis.url(), redis.url_without_scripts()] {
        let locks = LockManager::connect(&url).await.expect("it is up");
        // To clients, a fencing clock that is ahead of the server's time looks like a server whose time was set back.
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH);
        let ahead = (seconds.expect("after 1970").as_secs() + 2 * 3600) * 2_048_000;
        redis.set_fencing_clock(CLOCK, ahead);
        let guard = locks.acquire_free("k", patient()).await;
        let known = u64::from(guard.lease().fencing_token());
        assert!(known > ahead);
        guard.release_held().await;
        redis.cli(&["FLUSHALL"]);

        let refused = locks.acquire("k", patient().no_wait()).await;
        let refused = refused.expect_err("out of bounds");
        let checked = locks.check().await.expect_err("out of bounds");
        let mut commands = Vec::new();
        for error in [refused, checked] {
            unavailable(&error, "no fencing token can be issued");
            let source = error.source().expect("it has one").to_string();
            let (_, command) = source.rsplit_once("run: ").expect("the fix");
            let id = format!("{}-{}", known / 2048, known % 2048);
            assert_eq!(command, format!("XADD {CLOCK} MAXLEN 0 {id} 0 0"));
            commands.push(command.to_owned());
        }
        let command: Vec<_> = commands[0].split(' ').collect();
        redis.cli(&command);
        let guard = locks.acquire_free("k", patient()).await;
        assert!(u64::from(guard.lease().fencing_token()) > known);
        guard.release_held().await;
        locks.check().await.expect("it works again");
        redis.cli(&["FLUSHALL"]);
    }
}
