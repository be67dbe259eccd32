//! The promises of every lock, on the backend inside the process and in virtual time.

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
    AcquireFree as _, DropFlag, ReleaseHeld as _, SECOND, assert_fails, invalid, options,
    reason_of_loss, run_in_a_row,
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
async fn first_come_first_served_among_tasks() {
    let locks = LockManager::in_memory();
    let guard = locks.acquire_free("k", options()).await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    for number in 0..10 {
        let (locks, order) = (locks.clone(), order.clone());
        tasks.spawn(async move {
            let _guard = locks.acquire("k", options()).await.expect("waits its turn");
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
async fn a_wait_ends_on_time_and_says_how_long_the_holder_has() {
    let locks = LockManager::in_memory();
    let _guard = locks.acquire_free("k", options().without_renewal()).await;
    let start = Instant::now();
    let error = locks
        .acquire("k", options().wait(SECOND * 4))
        .await
        .expect_err("held");
    assert_eq!(start.elapsed().as_secs(), 4);
    let LockError::Busy {
        key,
        retry_after: Some(retry_after),
        ..
    } = error
    else {
        panic!("not busy: {error:?}");
    };
    assert_eq!(key.as_str(), "k");
    assert!(
        retry_after <= SECOND * 6 && retry_after > SECOND * 5,
        "{retry_after:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn without_renewal_the_lease_ends_at_its_ttl_and_the_body_with_it() {
    let locks = LockManager::in_memory();
    let start = Instant::now();
    let (flag, dropped) = DropFlag::new();
    let result = locks
        .run("k", options().without_renewal(), |_| async move {
            let _flag = flag;
            pending::<()>().await;
        })
        .await;
    let Err(LockError::Lost {
        key,
        reason: LeaseLost::Expired,
        ..
    }) = result
    else {
        panic!("not expired: {result:?}");
    };
    assert_eq!(key.as_str(), "k");
    assert!(dropped.is_true());
    let took = start.elapsed();
    assert!(
        took > SECOND * 9 && took < SECOND * 10,
        "ends before the ttl does, not after: {took:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn the_validity_is_a_little_less_than_the_ttl() {
    let locks = LockManager::in_memory();
    let guard = locks.acquire_free("k", options()).await;
    // The difference is 1 % for clocks that run at different rates, and 2 ms.
    assert_eq!(
        guard.lease().remaining(),
        Duration::from_millis(10_000 - 100 - 2)
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
        "the caller does not wait for it"
    );
    sleep(SECOND * 29).await;
    assert!(!is_free(&locks).await);
    sleep(SECOND * 1).await;
    assert!(is_free(&locks).await);
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_wakes_every_observer() {
    let locks = LockManager::in_memory();
    let guard = locks.acquire_free("k", options()).await;
    let lease = guard.lease();
    let watching = tokio::spawn({
        let lease = lease.clone();
        async move { lease.lost().await }
    });
    locks.force_release("k").await.expect("works");
    assert_eq!(watching.await.expect("ends"), LeaseLost::TakenAway);
    assert!(lease.is_lost());
    assert_eq!(lease.remaining(), Duration::ZERO);
    assert!(matches!(
        lease.ensure(Duration::ZERO),
        Err(LockError::Lost { .. })
    ));
    assert!(matches!(lease.verify().await, Err(LockError::Lost { .. })));
    let released = guard.release().await;
    assert_eq!(reason_of_loss(released), LeaseLost::TakenAway);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_outlives_its_guard_says_that_it_was_released() {
    let locks = LockManager::in_memory();
    let guard = locks.acquire_free("k", options()).await;
    let lease = guard.lease();
    guard.release_held().await;
    assert_eq!(lease.lost().await, LeaseLost::Released);
    assert_eq!(lease.remaining(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn verifying_reads_the_backend_and_does_not_extend() {
    let locks = LockManager::in_memory();
    let guard = locks.acquire_free("k", options().without_renewal()).await;
    sleep(SECOND * 5).await;
    let before = guard.lease().remaining();
    guard.lease().verify().await.expect("held");
    assert_eq!(guard.lease().remaining(), before);
    let on_the_server = locks
        .inspect("k")
        .await
        .expect("works")
        .expect("held")
        .remaining;
    assert_eq!(on_the_server, Some(SECOND * 5));
    locks.force_release("k").await.expect("works");
    assert!(!guard.lease().is_lost(), "no reply has said so yet");
    assert!(matches!(
        guard.lease().verify().await,
        Err(LockError::Lost { .. })
    ));
    assert!(guard.lease().is_lost());
}

#[tokio::test(start_paused = true)]
async fn ensuring_more_than_is_certain_is_an_error() {
    let locks = LockManager::in_memory();
    let guard = locks.acquire_free("k", options().without_renewal()).await;
    let lease = guard.lease();
    lease.ensure(SECOND * 9).expect("just acquired");
    sleep(SECOND * 5).await;
    lease.ensure(SECOND * 4).expect("4.9 s are left");
    assert!(matches!(
        lease.ensure(SECOND * 5),
        Err(LockError::Unavailable { .. })
    ));
    sleep(SECOND * 5).await;
    assert!(matches!(
        lease.ensure(Duration::ZERO),
        Err(LockError::Lost { .. })
    ));
    let renewed = locks.acquire_free("other", options()).await;
    assert!(matches!(
        renewed.lease().ensure(SECOND * 6),
        Err(LockError::Invalid { .. })
    ));
}

#[tokio::test(start_paused = true)]
async fn the_guard_of_a_lost_lease_blocks_no_waiter() {
    let locks = LockManager::in_memory();
    let lost = locks.acquire_free("k", options().without_renewal()).await;
    let start = Instant::now();
    let next = locks
        .acquire("k", options().wait(SECOND * 60))
        .await
        .expect("granted");
    assert!(
        start.elapsed() <= SECOND * 10 + Duration::from_millis(100),
        "{:?}",
        start.elapsed()
    );
    assert!(lost.lease().is_lost());
    drop(lost);
    assert!(!next.lease().is_lost());
    assert!(!is_free(&locks).await);
}

#[tokio::test(start_paused = true)]
async fn a_body_goes_on_after_the_loss_where_that_is_wanted() {
    let locks = LockManager::in_memory();
    let options = options().without_renewal().on_lost(OnLost::Continue);
    let value = locks
        .run("k", options, |lease| async move {
            sleep(SECOND * 11).await;
            lease.is_lost()
        })
        .await;
    assert!(value.expect("ran to its end"));
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
    // As in a process that is stopped beyond its lease: when it goes on, its body is ready to run. The loss of the lease
    // was not reported yet.
    wake.send(()).expect("the body waits");
    advance(SECOND * 20).await;
    let result = running.await.expect("no panic");
    assert_fails!(result, LockError::Lost { .. });
    assert_eq!(steps.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn fencing_tokens_grow_with_each_acquisition() {
    let locks = LockManager::in_memory();
    let mut last = 0;
    for key in ["a", "b", "a", "a", "b"] {
        let guard = locks.acquire_free(key, options()).await;
        let token = u64::from(guard.lease().fencing_token());
        assert!(token > last, "{token} after {last}");
        assert!(token < 1 << 53);
        last = token;
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_dropped_is_gone_before_its_lock() {
    let locks = LockManager::in_memory();
    let (flag, dropped) = DropFlag::new();
    let run = locks.run("k", options(), |_| async move {
        let _flag = flag;
        pending::<()>().await;
    });
    assert!(timeout(SECOND, run).await.is_err());
    assert!(dropped.is_true());
    assert!(is_free(&locks).await);
}

#[tokio::test(start_paused = true)]
async fn the_last_share_of_a_lease_lets_go() {
    let locks = LockManager::in_memory();
    let inner = locks.clone();
    let share = locks
        .run("k", options(), |_| async move {
            inner.acquire("k", options()).await
        })
        .await
        .expect("free")
        .expect("held by this task");
    assert!(!share.lease().is_lost());
    assert!(!is_free(&locks).await);
    share.release_held().await;
    assert!(is_free(&locks).await);
}

#[tokio::test(start_paused = true)]
async fn taking_a_key_again_after_its_loss_is_lost() {
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
        .expect("ran to its end");
}

#[tokio::test(start_paused = true)]
async fn joined_futures_share_the_lease_and_spawned_tasks_do_not() {
    let locks = LockManager::in_memory();
    let inner = locks.clone();
    locks
        .run("k", options(), |_| async move {
            let (a, b) = tokio::join!(
                inner.try_acquire("k", options()),
                inner.try_acquire("k", options())
            );
            assert!(a.expect("a reply").is_some() && b.expect("a reply").is_some());
            let spawned = tokio::spawn(async move { inner.try_acquire("k", options()).await });
            let spawned = spawned.await.expect("ends").expect("a reply");
            assert!(spawned.is_none());
        })
        .await
        .expect("free");
}

#[tokio::test(start_paused = true)]
async fn a_bare_guard_does_not_mark_its_task() {
    let locks = LockManager::in_memory();
    let _guard = locks.acquire_free("k", options()).await;
    assert!(!is_free(&locks).await);
    assert!(current_lease().is_none());
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
#[should_panic(expected = "the lock `k` is not held by this task")]
async fn asserting_a_lock_that_is_not_held_panics() {
    assert_held!("k");
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
async fn what_a_shutdown_cannot_stop_ends_with_its_ttl() {
    let locks = LockManager::in_memory();
    let guard = locks.acquire_free("k", options()).await;
    locks.shutdown(SECOND).await;
    assert_eq!(guard.lease().lost().await, LeaseLost::Shutdown);
    assert!(locks.inspect("k").await.expect("works").is_some());
    sleep(SECOND * 10).await;
    assert!(locks.inspect("k").await.expect("works").is_none());
}

#[tokio::test(start_paused = true)]
async fn a_label_is_shown_instead_of_host_and_process() {
    const LABEL: &str = "10.0.3.7:8080";
    let locks = LockManager::builder().label(LABEL).in_memory();
    for (held, waits) in [
        (options(), options()),
        (options().shared(), options()),
        (options().permits(1), options().permits(1)),
    ] {
        let guard = locks.acquire_free("k", held).await;
        let waiting = tokio::spawn({
            let locks = locks.clone();
            async move { locks.acquire("k", waits).await }
        });
        tokio::task::yield_now().await;
        let info = locks.inspect("k").await.expect("works").expect("held");
        let listed = locks.list("").next().await.expect("one").expect("works");
        for shown in [
            info.holder,
            listed.info.holder,
            info.leases[0].process.clone(),
        ] {
            assert_eq!(shown.to_string(), LABEL);
        }
        for waiter in info.queue {
            assert_eq!(waiter.process.to_string(), LABEL);
        }
        guard.release_held().await;
        waiting
            .await
            .expect("no panic")
            .expect("free")
            .release_held()
            .await;
    }
}

/// Connecting to `memory://` reports it, and a manager that was made without connecting reports it with its first acquire.
#[tokio::test(start_paused = true)]
async fn a_bad_label_is_refused_by_each_way_to_a_manager() {
    let builder = || LockManager::builder().label("two words");
    let connected = builder().connect("memory://").await.map(drop);
    let acquired = builder()
        .in_memory()
        .acquire("k", options())
        .await
        .map(drop);
    for refused in [connected, acquired] {
        invalid(
            &refused.expect_err("refused"),
            "the label has the character ' '",
        );
    }
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

/// The first runtime ends while its task of the timers sleeps.
#[test]
fn a_lease_is_renewed_in_a_runtime_that_follows_another_one() {
    let locks = LockManager::in_memory();
    let in_a_runtime = |ttl: Duration, then: Duration| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build();
        runtime.expect("a runtime").block_on(async {
            let guard = locks.acquire_free("k", LockOptions::new(ttl)).await;
            sleep(then).await;
            guard.release_held().await;
        });
    };
    let ttl = SECOND * 2;
    in_a_runtime(ttl, Duration::ZERO);
    in_a_runtime(ttl, ttl * 3 / 2);
}

#[test]
fn outside_a_runtime_an_acquire_says_what_is_missing() {
    let locks = LockManager::in_memory();
    let mut acquire = std::pin::pin!(locks.acquire("k", options()));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let std::task::Poll::Ready(Err(error)) = acquire.as_mut().poll(&mut context) else {
        panic!("no error");
    };
    assert!(error.to_string().contains("tokio runtime"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_no_task_takes_goes_to_the_next_when_half_of_its_ttl_is_gone() {
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
        .expect("its turn again, now that it is polled");
    assert!(!late.lease().is_lost());
    late.release_held().await;
}

#[tokio::test(start_paused = true)]
async fn a_task_that_slept_through_its_grant_goes_on_waiting_also_where_no_other_may() {
    let locks = LockManager::builder().max_waiting(1).in_memory();
    let first = locks.acquire_free("k", options()).await;
    let mut sleeper = Box::pin(locks.acquire("k", options().wait_forever()));
    assert!(timeout(SECOND, &mut sleeper).await.is_err());
    first.release_held().await;
    // The whole process stands still for longer than its ttl.
    advance(SECOND * 11).await;
    let late = sleeper.await.expect("it had its place all the time");
    late.release_held().await;
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_a_grant_that_no_task_took() {
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
async fn min_hold_keeps_no_lock_under_which_nothing_ran() {
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
fn a_lease_is_renewed_though_the_runtime_that_renewed_it_ended() {
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
async fn a_lock_that_is_free_at_every_turn_leaves_its_runtime_to_others() {
    let locks = LockManager::in_memory();
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let busy = tokio::spawn({
        let stop = stop.clone();
        async move {
            // The loop is long enough if no other task gets a turn.
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

/// The claim also holds while the reply to the release is late.
#[tokio::test(start_paused = true)]
async fn behind_a_release_in_the_background_the_next_try_finds_the_lock_free() {
    let builder = LockManager::builder().release_in_background();
    let (locks, faults) = builder.in_memory_with_faults();
    for reply in [Duration::ZERO, SECOND / 10] {
        faults.delay(reply);
        run_in_a_row(&locks, "k", 5).await;
        locks
            .run_all(["k", "l"], options(), async |_| {})
            .await
            .expect("free");
    }
    locks.shutdown(SECOND).await;
    assert!(is_unlocked(&locks, "k").await && is_unlocked(&locks, "l").await);
}

async fn is_unlocked(locks: &LockManager, key: &str) -> bool {
    locks.inspect(key).await.expect("a reply").is_none()
}
