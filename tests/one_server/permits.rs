//! Permits on one server: the number of holders, the number of each permit, a bound that changes, and a rate.

use std::{
    sync::{Arc, Mutex},
    time::Instant,
};

use lock_core::{LockError, LockGuard, LockManager, LockOptions, inspect::LockMode};
use lock_tests::{
    AcquireFree as _, HANG, RedisServer, ReleaseHeld as _, SECOND, assert_fails, connect,
    eventually, options,
};
use tokio::task::JoinSet;

use crate::stopped_waiter::QUEUE;

const LOCK: &str = "lock:k";

fn permits(n: u16) -> LockOptions {
    options().permits(n.into())
}

async fn is_busy(locks: &LockManager, n: u16) -> bool {
    match locks.acquire("k", permits(n).no_wait()).await {
        Err(LockError::Busy { .. }) => true,
        Ok(_) => false,
        other => panic!("{other:?}"),
    }
}

fn permit(guard: &LockGuard) -> u16 {
    guard.lease().permit().expect("a permit has a number")
}

async fn take(locks: &LockManager, n: u16, count: usize) -> Vec<LockGuard> {
    let mut taken = Vec::new();
    for _ in 0..count {
        taken.push(locks.acquire_free("k", permits(n)).await);
    }
    taken
}

#[tokio::test]
async fn as_many_hold_as_there_are_permits_and_each_has_the_lowest_free_number() {
    let server = RedisServer::start();
    let (one, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let first = one.acquire_free("k", permits(3)).await;
    let second = other.acquire_free("k", permits(3)).await;
    let third = one.acquire_free("k", permits(3)).await;
    assert_eq!([&first, &second, &third].map(permit), [0, 1, 2]);
    let tokens = [&first, &second, &third].map(|guard| guard.lease().fencing_token());
    assert!(tokens.is_sorted() && tokens[0] < tokens[1] && tokens[1] < tokens[2]);
    assert!(is_busy(&one, 3).await && is_busy(&other, 3).await);
    let seen = one.inspect("k").await.expect("works").expect("held");
    assert_eq!((seen.mode, seen.holders), (LockMode::Permits, 3));
    assert!(
        seen.leases
            .is_sorted_by_key(|lease| std::cmp::Reverse(lease.remaining))
    );
    let left = seen.leases.iter().filter_map(|lease| lease.remaining);
    assert_eq!(left.filter(|left| !left.is_zero()).count(), 3);
    let mut numbers: Vec<_> = seen.leases.iter().map(|lease| lease.permit).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [Some(0), Some(1), Some(2)]);
    second.release_held().await;
    let next = other.acquire_free("k", permits(3)).await;
    assert_eq!(permit(&next), 1);
    for guard in [first, third, next] {
        guard.release_held().await;
    }
    eventually!(HANG, "nothing is left" => server.keys("*") == ["__lock_core__:clock"]);
}

#[tokio::test]
async fn tasks_that_do_not_wait_get_permits_together() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    for round in 0..20 {
        // Five tasks want one of four permits, and get four. The two that want the only permit get none.
        let numbers = [4, 4, 1, 4, 4, 4, 1];
        let calls = numbers.map(|n| locks.try_acquire("k", permits(n)));
        let tried = futures_util::future::join_all(calls).await;
        let taken = tried.into_iter().map(|tried| tried.expect("a reply"));
        let taken: Vec<_> = taken.map(|guard| guard.as_ref().map(permit)).collect();
        let expected = [Some(0), Some(1), None, Some(2), Some(3), None, None];
        assert_eq!(taken, expected, "round {round}");
        eventually!(HANG, "all are released" => server.get(LOCK).is_none());
    }
    assert!(server.keys("*waiters*").is_empty(), "no task has queued");
}

/// The bound differs during the deployment of a new version.
#[tokio::test]
async fn a_number_of_permits_that_changes_is_safe_and_overtakes_no_waiter() {
    let server = RedisServer::start();
    let (old, new) = (connect(&server.url()).await, connect(&server.url()).await);
    let wait = |locks: &LockManager, n| {
        let locks = locks.clone();
        tokio::spawn(async move { locks.acquire_free("k", permits(n).wait(HANG)).await })
    };
    let queued = async |length| {
        eventually!(HANG, "it is in the queue" => server.queue(QUEUE).len() == length);
    };
    // From 4 to 6: a waiter of the new version waits after one of the old version.
    let mut held = take(&old, 4, 4).await;
    let fifth = wait(&old, 4);
    queued(1).await;
    let sixth = wait(&new, 6);
    queued(2).await;
    assert!(!fifth.is_finished() && !sixth.is_finished());
    fifth.abort();
    let sixth = sixth.await.expect("the waiter before it has left");
    assert_eq!(permit(&sixth), 4);
    held.push(sixth);
    held.extend(take(&new, 6, 1).await);
    assert_eq!(permit(&held[5]), 5);
    // From 6 to 4: a waiter of the old version enters when fewer than four permits are held.
    let waiting = wait(&old, 4);
    queued(1).await;
    for _ in 0..2 {
        held.remove(0).release_held().await;
        assert!(is_busy(&new, 6).await, "it overtook the first waiter");
        assert!(!waiting.is_finished());
    }
    held.remove(0).release_held().await;
    let entered = waiting.await.expect("granted");
    assert_eq!(permit(&entered), 0);
    drop((entered, held));
}

#[tokio::test]
async fn a_holder_that_is_gone_blocks_its_own_permit_for_its_own_ttl() {
    let server = RedisServer::start();
    let (gone, alive) = (connect(&server.url()).await, connect(&server.url()).await);
    let short = LockOptions::new(SECOND * 6).permits(2).without_renewal();
    std::mem::forget(gone.acquire_free("k", short).await);
    // If this lease prolonged the other one, the test would hang.
    let long = LockOptions::new(HANG * 10).permits(2);
    let other = alive.acquire_free("k", long).await;
    assert_eq!(permit(&other), 1);
    let next = alive.acquire_free("k", permits(2).wait(HANG)).await;
    assert_eq!(permit(&next), 0);
    assert!(is_busy(&alive, 2).await);
    next.release_held().await;
    other.release_held().await;
    eventually!(HANG, "nothing is left" => server.keys("*") == ["__lock_core__:clock"]);
}

/// `min_hold` keeps the permit of a body that has ended.
#[tokio::test(flavor = "multi_thread")]
async fn permits_that_are_kept_for_a_second_bound_the_starts_in_a_second() {
    let server = RedisServer::start();
    let starts = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    for _ in 0..2 {
        let locks = connect(&server.url()).await;
        for _ in 0..6 {
            let (locks, starts) = (locks.clone(), starts.clone());
            tasks.spawn(async move {
                let rate = permits(5).min_hold(SECOND).wait(HANG);
                let body = async |_| starts.lock().expect("no panic").push(Instant::now());
                locks.run("k", rate, body).await.expect("a turn");
            });
        }
    }
    tasks.join_all().await;
    let mut starts = std::mem::take(&mut *starts.lock().expect("no panic"));
    starts.sort();
    assert_eq!(starts.len(), 12);
    for six in starts.windows(6) {
        let took = six[5] - six[0];
        // A body may be polled a little after its lease began.
        assert!(took > SECOND * 3 / 4, "six bodies began within {took:?}");
    }
}

#[tokio::test]
async fn permits_and_other_modes_of_a_key_refuse_each_other() {
    let server = RedisServer::start();
    let (one, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let guard = one.acquire_free("k", permits(2)).await;
    for mode in [options(), options().shared()] {
        for locks in [&one, &other] {
            let refused = locks.acquire("k", mode.clone()).await;
            let Err(LockError::Invalid { key, reason, .. }) = refused else {
                panic!("{refused:?}");
            };
            assert!(reason.contains("another mode"), "{reason}");
            assert_eq!(key.expect("named").as_str(), "k");
        }
    }
    guard.release_held().await;
    for mode in [options(), options().shared()] {
        let guard = one.acquire_free("k", mode).await;
        let refused = other.acquire("k", permits(2)).await;
        assert_fails!(refused, LockError::Invalid { .. });
        guard.release_held().await;
        one.force_release("k").await.expect("works");
    }
    let guard = one.acquire_free("k", permits(2)).await;
    guard.release_held().await;
}
