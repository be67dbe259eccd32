//! The lifetime of a lock on the backend inside the process, in virtual time. The claims that hold on every backend are in
//! `topologies/servers.rs`.

use std::{
    future::pending,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use lock_core::{
    LeaseLost, LockError, LockManager, LockOptions, OnLost, assert_held, current_lease,
};
use lock_tests::{
    AcquireFree as _, ReleaseHeld as _, SECOND, assert_fails, options, reason_of_loss,
};
use tokio::{
    task::JoinSet,
    time::{Instant, advance, sleep, timeout},
};

async fn is_free(locks: &LockManager) -> bool {
    let tried = locks.try_acquire("k", options()).await;
    tried.expect("a reply").is_some()
}

#[tokio::test(start_paused = true)]
async fn tasks_are_served_first_come_first_served() {
    let locks = LockManager::in_memory();
    let guard = locks.acquire_free("k", options()).await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    for number in 0..10 {
        let (locks, order) = (locks.clone(), order.clone());
        tasks.spawn(async move {
            let _guard = locks.acquire("k", options()).await.expect("its turn");
            order.lock().expect("no panic").push(number);
        });
        tokio::task::yield_now().await;
    }
    drop(guard);
    while tasks.join_next().await.is_some() {}
    assert_eq!(
        *order.lock().expect("no panic"),
        (0..10).collect::<Vec<_>>()
    );
}

#[tokio::test(start_paused = true)]
async fn a_body_that_hangs_is_ended_by_max_hold() {
    let locks = LockManager::in_memory();
    let start = Instant::now();
    let hung = locks
        .run("k", options().max_hold(SECOND * 60), |_| pending::<()>())
        .await;
    assert_eq!(reason_of_loss(hung), LeaseLost::MaxHold);
    assert_eq!(start.elapsed().as_secs(), 60);
    assert!(is_free(&locks).await);
}

#[tokio::test(start_paused = true)]
async fn min_hold_keeps_the_lock_after_a_short_body() {
    let locks = LockManager::in_memory();
    let start = Instant::now();
    locks
        .run("k", options().min_hold(SECOND * 30), |_| async {})
        .await
        .expect("free");
    assert_eq!(
        start.elapsed(),
        Duration::ZERO,
        "the caller does not wait for min_hold"
    );
    sleep(SECOND * 29).await;
    assert!(!is_free(&locks).await);
    sleep(SECOND * 1).await;
    assert!(is_free(&locks).await);
}

#[tokio::test(start_paused = true)]
async fn verifying_asks_the_backend_and_extends_no_lease() {
    let locks = LockManager::in_memory();
    let guard = locks.acquire_free("k", options().without_renewal()).await;
    sleep(SECOND * 5).await;
    let before = guard.lease().remaining();
    guard.lease().verify().await.expect("held");
    assert_eq!(guard.lease().remaining(), before);
    let at_the_backend = locks
        .inspect("k")
        .await
        .expect("works")
        .expect("held")
        .remaining;
    assert_eq!(at_the_backend, Some(SECOND * 5));
    locks.force_release("k").await.expect("works");
    assert!(
        !guard.lease().is_lost(),
        "no reply has reported the loss yet"
    );
    assert!(matches!(
        guard.lease().verify().await,
        Err(LockError::Lost { .. })
    ));
    assert!(guard.lease().is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_body_takes_no_step_once_its_lease_has_run_out() {
    let locks = LockManager::in_memory();
    let steps = Arc::new(AtomicU32::new(0));
    let counted = steps.clone();
    let (wake, woken) = tokio::sync::oneshot::channel();
    let running = tokio::spawn(async move {
        let body = |_| async move {
            counted.fetch_add(1, Ordering::SeqCst);
            woken.await.expect("woken");
            counted.fetch_add(1, Ordering::SeqCst);
        };
        locks.run("k", options().without_renewal(), body).await
    });
    tokio::task::yield_now().await;
    assert_eq!(steps.load(Ordering::SeqCst), 1);
    // A process was stopped beyond the end of its lease, and continues: its body is ready to run, and the loss of the lease
    // has not been reported yet.
    wake.send(()).expect("the body waits");
    advance(SECOND * 20).await;
    let result = running.await.expect("no panic");
    assert_fails!(result, LockError::Lost { .. });
    assert_eq!(steps.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_lost_its_key_cannot_take_it_again() {
    let locks = LockManager::in_memory();
    let inner = locks.clone();
    let options = options().without_renewal().on_lost(OnLost::Continue);
    locks
        .run("k", options.clone(), |_| async move {
            sleep(SECOND * 11).await;
            let again = inner.acquire("k", options).await;
            assert_fails!(again, LockError::Lost { .. });
        })
        .await
        .expect("the body ran to its end");
}

#[tokio::test(start_paused = true)]
async fn the_current_lease_is_that_of_the_innermost_body() {
    let locks = LockManager::in_memory();
    let inner = locks.clone();
    assert!(current_lease().is_none());
    locks
        .run("outer", options(), |_| async move {
            let key = |lease: Option<lock_core::Lease>| lease.expect("in a body").key().to_string();
            assert_eq!(key(current_lease()), "outer");
            inner
                .run("inner", options(), |_| async {
                    assert_eq!(key(current_lease()), "inner");
                    assert_held!("inner");
                    assert_held!("outer");
                })
                .await
                .expect("free");
            assert_eq!(key(current_lease()), "outer");
        })
        .await
        .expect("free");
    assert!(current_lease().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_guards_and_refuses_new_ones() {
    let locks = LockManager::in_memory();
    let guard = locks.acquire_free("k", options()).await;
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { locks.acquire("k", options()).await }
    });
    tokio::task::yield_now().await;
    let shutdown = tokio::spawn({
        let locks = locks.clone();
        async move { locks.shutdown(SECOND * 60).await }
    });
    let refused = waiting.await.expect("ends");
    assert_fails!(refused, LockError::Unavailable { .. });
    let refused = locks.acquire("other", options()).await;
    assert_fails!(refused, LockError::Unavailable { .. });
    sleep(SECOND * 30).await;
    assert!(!shutdown.is_finished());
    assert!(!guard.lease().is_lost(), "renewed while the shutdown waits");
    guard.release_held().await;
    shutdown.await.expect("ends");
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_outlives_a_shutdown_ends_with_its_ttl() {
    let locks = LockManager::in_memory();
    let guard = locks.acquire_free("k", options()).await;
    locks.shutdown(SECOND).await;
    assert_eq!(guard.lease().lost().await, LeaseLost::Shutdown);
    assert!(locks.inspect("k").await.expect("works").is_some());
    sleep(SECOND * 10).await;
    assert!(locks.inspect("k").await.expect("works").is_none());
}

#[tokio::test(start_paused = true)]
async fn an_inspection_shows_the_label_of_the_manager() {
    const LABEL: &str = "10.0.3.7:8080";
    let locks = LockManager::builder().label(LABEL).in_memory();
    let guard = locks.acquire_free("k", options()).await;
    let info = locks.inspect("k").await.expect("works").expect("held");
    let listed = locks.list("").next().await.expect("one").expect("works");
    for shown in [&info.holder, &listed.info.holder, &info.leases[0].process] {
        assert_eq!(shown.to_string(), LABEL);
    }
    guard.release_held().await;
}

#[tokio::test(start_paused = true)]
async fn the_caps_of_a_manager_hold() {
    let locks = LockManager::builder()
        .max_leases(2)
        .max_waiting(1)
        .in_memory();
    let _a = locks.acquire("a", options()).await.expect("the first");
    let b = locks.acquire("b", options()).await.expect("the second");
    let third = locks.acquire("c", options()).await;
    assert_fails!(third, LockError::Unavailable { .. });
    b.release_held().await;
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { locks.acquire("a", options()).await.map(drop) }
    });
    tokio::task::yield_now().await;
    let second = locks.acquire("a", options()).await;
    assert_fails!(second, LockError::Unavailable { .. });
    waiting.abort();
}

/// The first runtime ends while the task that renews leases sleeps in it.
#[test]
fn a_lease_is_renewed_in_a_runtime_that_follows_another_one() {
    const TTL: Duration = Duration::from_secs(4);
    let runtime = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build();
        runtime.expect("a runtime")
    };
    let locks = LockManager::in_memory();
    let acquire = async |options: LockOptions, then: Duration| {
        let guard = locks.acquire_free("k", options).await;
        sleep(then).await;
        guard
    };
    let exclusive = || LockOptions::new(TTL);
    runtime().block_on(async {
        acquire(exclusive(), Duration::ZERO)
            .await
            .release_held()
            .await;
    });
    runtime().block_on(async { acquire(exclusive(), TTL * 3 / 2).await.release_held().await });
    // A task that joins a shared lease sends no request.
    let shared = || LockOptions::new(TTL).shared();
    let first = runtime().block_on(acquire(shared(), Duration::ZERO));
    runtime().block_on(async {
        acquire(shared(), TTL * 3 / 2).await.release_held().await;
        first.release_held().await;
    });
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_no_task_takes_goes_to_the_next_waiter_within_half_of_its_ttl() {
    let locks = LockManager::in_memory();
    let first = locks.acquire_free("k", options()).await;
    let mut unpolled = Box::pin(locks.acquire("k", options().wait_forever()));
    assert!(timeout(SECOND, &mut unpolled).await.is_err());
    first.release_held().await;
    let start = Instant::now();
    let next = locks
        .acquire("k", options().wait_forever())
        .await
        .expect("granted");
    assert!(start.elapsed() < SECOND * 6, "{:?}", start.elapsed());
    next.release_held().await;
    let late = unpolled
        .await
        .expect("it is polled again, and has its turn");
    assert!(!late.lease().is_lost());
    late.release_held().await;
}

#[tokio::test(start_paused = true)]
async fn a_task_that_slept_through_its_grant_keeps_its_place_even_if_no_other_task_may_wait() {
    let locks = LockManager::builder().max_waiting(1).in_memory();
    let first = locks.acquire_free("k", options()).await;
    let mut sleeper = Box::pin(locks.acquire("k", options().wait_forever()));
    assert!(timeout(SECOND, &mut sleeper).await.is_err());
    first.release_held().await;
    // The whole process is suspended for longer than the ttl.
    advance(SECOND * 11).await;
    let late = sleeper.await.expect("it kept its place");
    late.release_held().await;
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_refuses_a_task_that_has_not_polled_since_its_grant() {
    let locks = LockManager::in_memory();
    let first = locks.acquire_free("k", options()).await;
    let mut unpolled = Box::pin(locks.acquire("k", options().wait_forever()));
    assert!(timeout(SECOND, &mut unpolled).await.is_err());
    first.release_held().await;
    locks.shutdown(Duration::ZERO).await;
    let late = unpolled.await;
    assert_fails!(late, LockError::Unavailable { .. });
}

#[tokio::test(start_paused = true)]
async fn min_hold_keeps_no_lock_that_no_body_had() {
    let locks = LockManager::in_memory();
    let first = locks.acquire_free("k", options()).await;
    let mut dropped =
        Box::pin(locks.acquire("k", options().wait_forever().min_hold(SECOND * 3600)));
    assert!(timeout(SECOND, &mut dropped).await.is_err());
    first.release_held().await;
    // The waiter is granted the lock, and dropped before it is polled again.
    drop(dropped);
    assert!(is_free(&locks).await);
}

#[tokio::test(start_paused = true)]
async fn a_setting_that_is_out_of_bounds_is_reported_by_the_first_acquire() {
    let locks = LockManager::builder()
        .command_timeout(Duration::MAX)
        .in_memory();
    for _ in 0..2 {
        let refused = locks.acquire("k", options()).await;
        assert_fails!(refused, LockError::Invalid { .. });
    }
    locks.shutdown(Duration::MAX).await;
}

#[test]
fn a_lease_is_renewed_after_the_runtime_that_renewed_it_has_ended() {
    let locks = LockManager::in_memory();
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_time()
            .build()
            .expect("a runtime")
    };
    let (first, second) = (runtime(), runtime());
    let short = || LockOptions::new(SECOND * 4);
    let other = first
        .block_on(locks.acquire("first", short()))
        .expect("free");
    let running = second.spawn({
        let locks = locks.clone();
        async move { locks.run("second", short(), |_| sleep(SECOND * 6)).await }
    });
    lock_tests::eventually_blocking(SECOND * 10, "both are held", || {
        second
            .block_on(locks.inspect("second"))
            .expect("works")
            .is_some()
    });
    drop(first);
    let ran = second.block_on(running).expect("no panic");
    assert!(ran.is_ok(), "{ran:?}");
    drop(other);
}

#[tokio::test]
async fn a_loop_over_a_free_lock_lets_other_tasks_run() {
    let locks = LockManager::in_memory();
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let busy = tokio::spawn({
        let stop = stop.clone();
        async move {
            // Only a runtime that gives no other task a turn finishes this loop.
            for _ in 0..300_000 {
                drop(locks.acquire_free("k", options()).await);
                if stop.load(std::sync::atomic::Ordering::SeqCst) {
                    return true;
                }
            }
            false
        }
    });
    tokio::task::yield_now().await;
    stop.store(true, std::sync::atomic::Ordering::SeqCst);
    assert!(busy.await.expect("no panic"), "no other task had a turn");
}
