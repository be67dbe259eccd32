//! The support for users' own tests: faults on demand, a manager for each test, and assertions.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use lock_core::{
    LeaseLost, LockError, LockManager, LockOptions, assert_held, distributed_lock, testing::Faults,
    with_locks,
};
use lock_tests::{AcquireFree as _, ReleaseHeld as _, SECOND, assert_fails};
use tokio::time::{Instant, sleep};

mod readme;

/// Longer than any lease lasts without a renewal.
const LONG: Duration = Duration::from_secs(60);

/// The ways to hold a lock. Each fault shows in all of them.
#[derive(Clone, Copy, Debug)]
enum Way {
    Attribute,
    Run,
    Guard,
}

const WAYS: [Way; 3] = [Way::Attribute, Way::Run, Way::Guard];

fn options() -> LockOptions {
    LockOptions::new(SECOND * 10).wait(SECOND * 2)
}

#[distributed_lock(key = "k", ttl = "10s", wait = "2s")]
async fn annotated(span: Duration) -> Result<(), LockError> {
    sleep(span).await;
    Ok(())
}

/// Holds the lock for this time, or until it is lost.
async fn hold(way: Way, locks: &LockManager, span: Duration) -> Result<(), LockError> {
    match way {
        Way::Attribute => with_locks(locks.clone(), annotated(span)).await,
        Way::Run => locks.run("k", options(), |_| sleep(span)).await,
        Way::Guard => {
            let guard = locks.acquire("k", options()).await?;
            let lease = guard.lease();
            tokio::select! {
                _ = lease.lost() => lease.ensure(Duration::ZERO),
                () = sleep(span) => guard.release().await,
            }
        }
    }
}

/// Injects a fault into a lock that has been held for half a minute; returns the result of the hold, and how long it took.
async fn strike(way: Way, fault: impl FnOnce(&Faults)) -> (Result<(), LockError>, Duration) {
    let (locks, faults) = LockManager::in_memory_with_faults();
    let striking = async {
        sleep(LONG / 2).await;
        fault(&faults);
        Instant::now()
    };
    let holding = async {
        let held = hold(way, &locks, LONG).await;
        (held, Instant::now())
    };
    let ((held, ended), struck) = tokio::join!(holding, striking);
    (held, ended - struck)
}

fn reason(held: &Result<(), LockError>) -> Option<LeaseLost> {
    match held {
        Err(LockError::Lost { key, reason, .. }) if key.as_str() == "k" => Some(*reason),
        _ => None,
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_lock_ends_its_holder_at_once() {
    for way in WAYS {
        let (held, after) = strike(way, |faults| faults.lose("k")).await;
        assert_eq!(reason(&held), Some(LeaseLost::TakenAway), "{way:?}");
        assert_eq!(after, Duration::ZERO, "{way:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_expired_lease_ends_its_holder_at_once() {
    for way in WAYS {
        let (held, after) = strike(way, |faults| faults.expire("k")).await;
        assert_eq!(reason(&held), Some(LeaseLost::Expired), "{way:?}");
        assert_eq!(after, Duration::ZERO, "{way:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_goes_elsewhere_ends_its_holder_at_once() {
    for way in WAYS {
        let (held, after) = strike(way, |faults| faults.busy("k")).await;
        assert_eq!(reason(&held), Some(LeaseLost::TakenAway), "{way:?}");
        assert_eq!(after, Duration::ZERO, "{way:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_runs_out_while_the_backend_is_unavailable() {
    for way in WAYS {
        let (held, after) = strike(way, Faults::unavailable).await;
        assert_eq!(reason(&held), Some(LeaseLost::Expired), "{way:?}");
        // The last renewal was up to a third of the ttl before the fault.
        assert!(
            after > SECOND * 6 && after < SECOND * 10,
            "{way:?}: {after:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_outlives_a_short_outage() {
    for way in WAYS {
        let (held, _) = strike(way, |faults| faults.unavailable_for(SECOND * 4)).await;
        assert!(held.is_ok(), "{way:?}: {held:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_outlives_late_replies_and_runs_out_if_they_are_too_late() {
    for way in WAYS {
        let (held, _) = strike(way, |faults| faults.delay(SECOND / 4)).await;
        assert!(held.is_ok(), "{way:?}: {held:?}");
        let (held, _) = strike(way, |faults| faults.delay(SECOND * 2)).await;
        assert_eq!(reason(&held), None, "{way:?}: {held:?}");
        // The delay is a third of the ttl.
        let (held, after) = strike(way, |faults| faults.delay(SECOND * 4)).await;
        assert_eq!(reason(&held), Some(LeaseLost::Expired), "{way:?}");
        assert!(
            after > SECOND * 6 && after < SECOND * 11,
            "{way:?}: {after:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_busy_elsewhere_is_waited_for_and_no_longer() {
    for way in WAYS {
        let (locks, faults) = LockManager::in_memory_with_faults();
        faults.busy("k");
        let start = Instant::now();
        let held = hold(way, &locks, SECOND).await;
        let Err(LockError::Busy {
            key, retry_after, ..
        }) = held
        else {
            panic!("{way:?}: {held:?}");
        };
        assert_eq!(key.as_str(), "k");
        // The last busy reply gave this time: it is that of a holder which renews its lease.
        let retry_after = retry_after.expect("it has an expiry");
        assert!(
            retry_after > SECOND * 9 && retry_after <= SECOND * 10,
            "{way:?}: {retry_after:?}"
        );
        assert_eq!(start.elapsed().as_secs(), 2, "{way:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_busy_for_a_while_is_had_then() {
    for way in WAYS {
        let (locks, faults) = LockManager::in_memory_with_faults();
        faults.busy_for("k", SECOND);
        let start = Instant::now();
        let held = hold(way, &locks, Duration::ZERO).await;
        assert!(held.is_ok(), "{way:?}: {held:?}");
        let took = start.elapsed();
        assert!(
            took >= SECOND && took < SECOND * 11 / 10,
            "{way:?}: {took:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_acquire_is_unavailable_after_its_wait() {
    for way in WAYS {
        let (locks, faults) = LockManager::in_memory_with_faults();
        faults.unavailable();
        let start = Instant::now();
        let held = hold(way, &locks, Duration::ZERO).await;
        let Err(LockError::Unavailable {
            key: Some(key),
            source,
        }) = held
        else {
            panic!("{way:?}: {held:?}");
        };
        assert_eq!(key.as_str(), "k");
        assert!(source.to_string().contains("the test"), "{source}");
        assert_eq!(start.elapsed().as_secs(), 2, "{way:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn late_replies_take_their_time_and_change_nothing_else() {
    for way in WAYS {
        let (locks, faults) = LockManager::in_memory_with_faults();
        faults.delay(SECOND / 4);
        let start = Instant::now();
        let held = hold(way, &locks, SECOND).await;
        assert!(held.is_ok(), "{way:?}: {held:?}");
        // The acquire and the release are delayed, each.
        assert_eq!(start.elapsed(), SECOND * 3 / 2, "{way:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_is_too_late_is_none() {
    for way in WAYS {
        let (locks, faults) = LockManager::in_memory_with_faults();
        faults.delay(SECOND * 3);
        let held = hold(way, &locks, Duration::ZERO).await;
        assert!(
            matches!(held, Err(LockError::Unavailable { .. })),
            "{way:?}: {held:?}"
        );
        // The request was executed, and the clean-up undoes it.
        faults.heal();
        sleep(SECOND * 4).await;
        let free = locks.inspect("k").await.expect("a response").is_none();
        assert!(free, "{way:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn healing_ends_every_fault() {
    for way in WAYS {
        let (locks, faults) = LockManager::in_memory_with_faults();
        faults.busy("k");
        faults.delay(SECOND * 3);
        faults.unavailable();
        faults.heal();
        let start = Instant::now();
        let held = hold(way, &locks, Duration::ZERO).await;
        assert!(held.is_ok(), "{way:?}: {held:?}");
        assert_eq!(start.elapsed(), Duration::ZERO, "{way:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_has_the_lock_soon_after_healing() {
    for way in WAYS {
        let (locks, faults) = LockManager::in_memory_with_faults();
        faults.busy("k");
        let start = Instant::now();
        let healing = async {
            sleep(SECOND).await;
            faults.heal();
        };
        let (held, ()) = tokio::join!(hold(way, &locks, Duration::ZERO), healing);
        assert!(held.is_ok(), "{way:?}: {held:?}");
        // No message tells the waiter: it polls every 50 ms on average.
        let took = start.elapsed();
        assert!(took <= SECOND * 11 / 10, "{way:?}: {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_is_dropped_by_a_fault_and_takes_no_further_step() {
    let (locks, faults) = LockManager::in_memory_with_faults();
    let went_on = Arc::new(AtomicBool::new(false));
    let flag = went_on.clone();
    let running = locks.run("k", options(), |_| async move {
        sleep(SECOND).await;
        flag.store(true, Ordering::SeqCst);
    });
    let losing = async {
        sleep(SECOND).await;
        faults.lose("k");
    };
    // The body is ready to go on at the same moment, and is polled after the fault.
    let ((), ran) = tokio::join!(biased; losing, running);
    assert_fails!(ran, LockError::Lost { .. });
    assert!(!went_on.load(Ordering::SeqCst));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_gets_a_lock_that_was_lost() {
    let (locks, faults) = LockManager::in_memory_with_faults();
    let lost = locks.acquire_free("k", options()).await;
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { locks.acquire("k", options()).await }
    });
    tokio::task::yield_now().await;
    let start = Instant::now();
    faults.lose("k");
    let next = waiting.await.expect("no panic").expect("its turn");
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert!(next.lease().fencing_token() > lost.lease().fencing_token());
    drop(lost);
    assert!(!next.lease().is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_fault_of_one_key_leaves_the_others_alone() {
    let (locks, faults) = LockManager::in_memory_with_faults();
    let _lost = locks.acquire_free("k", options()).await;
    let other = locks.acquire_free("other", options()).await;
    faults.lose("k");
    faults.busy("k");
    sleep(LONG).await;
    other.release().await.expect("held all the time");
}

#[tokio::test(start_paused = true)]
async fn a_fault_finds_its_key_behind_the_prefix_of_the_manager() {
    let builder = LockManager::builder().key_prefix("shop:");
    let (locks, faults) = builder.in_memory_with_faults();
    faults.busy("k");
    let tried = locks.try_acquire("k", options()).await.expect("a response");
    assert!(tried.is_none());
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the lock `k` is not held through this manager")]
async fn losing_a_lock_without_a_holder_panics() {
    let (locks, faults) = LockManager::in_memory_with_faults();
    let guard = locks.acquire_free("k", options()).await;
    guard.release_held().await;
    faults.lose("k");
}

#[tokio::test(start_paused = true)]
async fn questions_to_an_unavailable_backend_are_unavailable() {
    let (locks, faults) = LockManager::in_memory_with_faults();
    let guard = locks.acquire_free("k", options()).await;
    faults.unavailable();
    let unavailable = |error: LockError| matches!(error, LockError::Unavailable { .. });
    assert!(locks.inspect("k").await.is_err_and(unavailable));
    assert!(locks.force_release("k").await.is_err_and(unavailable));
    assert!(locks.check().await.is_err_and(unavailable));
    assert!(guard.lease().verify().await.is_err_and(unavailable));
    assert!(guard.release().await.is_err_and(unavailable));
}

#[tokio::test(start_paused = true)]
async fn the_release_of_a_lost_lease_says_so_though_the_backend_is_away() {
    let (locks, faults) = LockManager::in_memory_with_faults();
    let guard = locks.acquire_free("k", options()).await;
    faults.unavailable();
    assert_eq!(guard.lease().lost().await, LeaseLost::Expired);
    let released = guard.release().await;
    assert_eq!(reason(&released), Some(LeaseLost::Expired), "{released:?}");
}

#[test]
fn a_guard_that_is_dropped_outside_any_runtime_releases_late() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    let (locks, faults) = runtime.block_on(async { LockManager::in_memory_with_faults() });
    let guard = runtime.block_on(locks.acquire("k", options()));
    faults.delay(Duration::from_millis(1));
    drop(guard.expect("free"));
    let free = || {
        runtime
            .block_on(locks.inspect("k"))
            .expect("a response")
            .is_none()
    };
    lock_tests::eventually_blocking(SECOND * 10, "the key is free", free);
}

#[tokio::test(start_paused = true)]
async fn tests_with_managers_of_their_own_do_not_meet() {
    let (one, faults) = LockManager::in_memory_with_faults();
    let (other, _faults) = LockManager::in_memory_with_faults();
    faults.busy("k");
    let both = async {
        tokio::join!(
            with_locks(one, annotated(SECOND)),
            with_locks(other, annotated(SECOND)),
        )
    };
    let (busy, free) = both.await;
    assert!(busy.is_err_and(|error| error.is_busy()));
    assert!(free.is_ok(), "{free:?}");
}

#[tokio::test(start_paused = true)]
async fn the_innermost_manager_counts_and_a_spawned_task_has_none() {
    let (outer, faults) = LockManager::in_memory_with_faults();
    faults.busy("k");
    let nested = async {
        let inner = with_locks(LockManager::in_memory(), annotated(SECOND)).await;
        let spawned = tokio::spawn(annotated(SECOND)).await.expect("no panic");
        (inner, spawned)
    };
    let (inner, spawned) = with_locks(outer, nested).await;
    assert!(inner.is_ok(), "{inner:?}");
    assert!(
        matches!(spawned, Err(LockError::NotConfigured)),
        "{spawned:?}"
    );
}

#[distributed_lock(key = "account:{account}", ttl = "10s")]
async fn deposit(account: u64, into: u64) -> Result<(), LockError> {
    write_balance(into);
    Ok(())
}

/// Relies on its caller's lock.
fn write_balance(account: u64) {
    assert_held!("account:{account}");
    assert_held!(format!("account:{account}"));
}

#[tokio::test(start_paused = true)]
async fn an_annotated_function_holds_what_its_callee_asserts() {
    let deposited = with_locks(LockManager::in_memory(), deposit(7, 7)).await;
    assert!(deposited.is_ok(), "{deposited:?}");
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the lock `account:8` is not held by this task")]
async fn an_assertion_about_another_key_names_it() {
    drop(with_locks(LockManager::in_memory(), deposit(7, 8)).await);
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the lock `k` is not held by this task")]
async fn a_bare_guard_does_not_count_as_held() {
    let locks = LockManager::in_memory();
    let _guard = locks.acquire_free("k", options()).await;
    assert_held!("k");
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the lock `k` is not held by this task")]
async fn a_lost_lease_does_not_count_as_held() {
    let (locks, faults) = LockManager::in_memory_with_faults();
    let body = |_| async {
        faults.lose("k");
        assert_held!("k");
        pending::<()>().await;
    };
    drop(locks.run("k", options(), body).await);
}

#[tokio::test(start_paused = true)]
async fn no_owner_token_is_in_what_a_manager_shows_of_itself() {
    let (locks, faults) = LockManager::in_memory_with_faults();
    let plain = LockManager::in_memory();
    for locks in [&locks, &plain] {
        let guard = locks.acquire_free("k", options()).await;
        let shown = format!("{locks:?} {faults:?} {guard:?}");
        // The scheme of the owner token, and its last part, which has 32 digits.
        assert!(
            !shown.contains("lc1:") && !shown.contains("token: \""),
            "{shown}"
        );
    }
}
