//! The support for users' own tests: faults on demand, one manager for each test, and assertions.

use std::{future::pending, time::Duration};

use lock_core::{
    LeaseLost, LockError, LockManager, LockOptions, assert_held, distributed_lock, testing::Faults,
    with_locks,
};
use lock_tests::{AcquireFree as _, ReleaseHeld as _, SECOND, assert_fails};
use tokio::time::{Instant, sleep};

mod readme;

/// Longer than any lease lasts without a renewal.
const LONG: Duration = Duration::from_secs(60);

/// How a lock is held. Every fault is visible in each case.
#[derive(Clone, Copy, Debug)]
enum By {
    Attribute,
    Run,
    Guard,
}

const ALL: [By; 3] = [By::Attribute, By::Run, By::Guard];

fn options() -> LockOptions {
    LockOptions::new(SECOND * 10).wait(SECOND * 2)
}

#[distributed_lock(key = "k", ttl = "10s", wait = "2s")]
async fn annotated(span: Duration) -> Result<(), LockError> {
    sleep(span).await;
    Ok(())
}

/// Holds the lock for this time, or until it is lost.
async fn hold(by: By, locks: &LockManager, span: Duration) -> Result<(), LockError> {
    match by {
        By::Attribute => with_locks(locks.clone(), annotated(span)).await,
        By::Run => locks.run("k", options(), |_| sleep(span)).await,
        By::Guard => {
            let guard = locks.acquire("k", options()).await?;
            let lease = guard.lease();
            tokio::select! {
                _ = lease.lost() => lease.ensure(Duration::ZERO),
                () = sleep(span) => guard.release().await,
            }
        }
    }
}

/// Injects a fault after the lock was held for half a minute. Returns the result of the hold, and how long it lasted after the fault.
async fn strike(by: By, fault: impl FnOnce(&Faults)) -> (Result<(), LockError>, Duration) {
    let (locks, faults) = LockManager::in_memory_with_faults();
    let striking = async {
        sleep(LONG / 2).await;
        fault(&faults);
        Instant::now()
    };
    let holding = async {
        let held = hold(by, &locks, LONG).await;
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
async fn a_lease_that_a_fault_ends_ends_its_holder_at_once() {
    type Fault = fn(&Faults);
    let faults: [(Fault, LeaseLost); 3] = [
        (|faults| faults.lose("k"), LeaseLost::TakenAway),
        (|faults| faults.expire("k"), LeaseLost::Expired),
        (|faults| faults.busy("k"), LeaseLost::TakenAway),
    ];
    for (fault, expected) in faults {
        for by in ALL {
            let (held, after) = strike(by, fault).await;
            assert_eq!(reason(&held), Some(expected), "{by:?}");
            assert_eq!(after, Duration::ZERO, "{by:?}: {expected:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_expires_while_the_backend_is_unavailable() {
    for by in ALL {
        let (held, after) = strike(by, Faults::unavailable).await;
        assert_eq!(reason(&held), Some(LeaseLost::Expired), "{by:?}");
        // The last renewal was up to a third of the ttl before the fault.
        assert!(
            after > SECOND * 6 && after < SECOND * 10,
            "{by:?}: {after:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_survives_a_short_outage() {
    for by in ALL {
        let (held, _) = strike(by, |faults| faults.unavailable_for(SECOND * 4)).await;
        assert!(held.is_ok(), "{by:?}: {held:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_survives_late_replies_and_expires_if_they_are_too_late() {
    for by in ALL {
        let (held, _) = strike(by, |faults| faults.delay(SECOND / 4)).await;
        assert!(held.is_ok(), "{by:?}: {held:?}");
        let (held, _) = strike(by, |faults| faults.delay(SECOND * 2)).await;
        assert_eq!(reason(&held), None, "{by:?}: {held:?}");
        // Longer than a third of the ttl.
        let (held, after) = strike(by, |faults| faults.delay(SECOND * 4)).await;
        assert_eq!(reason(&held), Some(LeaseLost::Expired), "{by:?}");
        assert!(
            after > SECOND * 6 && after < SECOND * 11,
            "{by:?}: {after:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_busy_elsewhere_is_refused_after_the_wait() {
    let (locks, faults) = LockManager::in_memory_with_faults();
    faults.busy("k");
    let start = Instant::now();
    let held = locks.run("k", options(), |_| sleep(SECOND)).await;
    let Err(LockError::Busy {
        key, retry_after, ..
    }) = held
    else {
        panic!("{held:?}");
    };
    assert_eq!(key.as_str(), "k");
    // The last reply reported the lease of a holder that renews it.
    let retry_after = retry_after.expect("it has an expiry");
    assert!(
        retry_after > SECOND * 9 && retry_after <= SECOND * 10,
        "{retry_after:?}"
    );
    assert_eq!(start.elapsed().as_secs(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_busy_for_a_while_is_acquired_afterwards() {
    let (locks, faults) = LockManager::in_memory_with_faults();
    faults.busy_for("k", SECOND);
    let start = Instant::now();
    let held = locks.run("k", options(), async |_| ()).await;
    assert!(held.is_ok(), "{held:?}");
    let took = start.elapsed();
    assert!(took >= SECOND && took < SECOND * 11 / 10, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn an_acquire_is_unavailable_after_its_wait() {
    let (locks, faults) = LockManager::in_memory_with_faults();
    faults.unavailable();
    let start = Instant::now();
    let held = locks.run("k", options(), async |_| ()).await;
    let Err(LockError::Unavailable {
        key: Some(key),
        source,
    }) = held
    else {
        panic!("{held:?}");
    };
    assert_eq!(key.as_str(), "k");
    assert!(source.to_string().contains("the test"), "{source}");
    assert_eq!(start.elapsed().as_secs(), 2);
}

#[tokio::test(start_paused = true)]
async fn late_replies_take_their_time_and_change_nothing_else() {
    let (locks, faults) = LockManager::in_memory_with_faults();
    faults.delay(SECOND / 4);
    let start = Instant::now();
    let held = locks.run("k", options(), |_| sleep(SECOND)).await;
    assert!(held.is_ok(), "{held:?}");
    // Both the acquire and the release are delayed.
    assert_eq!(start.elapsed(), SECOND * 3 / 2);
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_is_too_late_counts_as_none() {
    let (locks, faults) = LockManager::in_memory_with_faults();
    faults.delay(SECOND * 3);
    let held = locks.run("k", options(), async |_| ()).await;
    assert_fails!(held, LockError::Unavailable { .. });
    // The clean-up undoes the request, which was executed.
    faults.heal();
    sleep(SECOND * 4).await;
    let free = locks.inspect("k").await.expect("a response").is_none();
    assert!(free);
}

#[tokio::test(start_paused = true)]
async fn healing_ends_every_fault() {
    let (locks, faults) = LockManager::in_memory_with_faults();
    faults.busy("k");
    faults.delay(SECOND * 3);
    faults.unavailable();
    faults.heal();
    let start = Instant::now();
    let held = locks.run("k", options(), async |_| ()).await;
    assert!(held.is_ok(), "{held:?}");
    assert_eq!(start.elapsed(), Duration::ZERO);
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
async fn a_fault_names_its_key_without_the_prefix_of_the_manager() {
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
async fn every_call_is_unavailable_while_the_backend_is() {
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
async fn the_release_of_a_lost_lease_reports_the_loss_although_the_backend_is_unavailable() {
    let (locks, faults) = LockManager::in_memory_with_faults();
    let guard = locks.acquire_free("k", options()).await;
    faults.unavailable();
    assert_eq!(guard.lease().lost().await, LeaseLost::Expired);
    let released = guard.release().await;
    assert_eq!(reason(&released), Some(LeaseLost::Expired), "{released:?}");
}

#[tokio::test(start_paused = true)]
async fn the_innermost_manager_is_used_and_a_spawned_task_has_none() {
    let (outer, faults) = LockManager::in_memory_with_faults();
    faults.busy("k");
    let nested = async {
        let inner = with_locks(LockManager::in_memory(), annotated(SECOND)).await;
        let spawned = tokio::spawn(annotated(SECOND)).await.expect("no panic");
        (inner, spawned)
    };
    let (inner, spawned) = with_locks(outer, nested).await;
    assert!(inner.is_ok(), "{inner:?}");
    assert_fails!(spawned, LockError::NotConfigured);
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
async fn an_assertion_in_a_callee_of_an_annotated_function_passes() {
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
async fn no_debug_output_contains_an_owner_token() {
    let (locks, faults) = LockManager::in_memory_with_faults();
    let plain = LockManager::in_memory();
    for locks in [&locks, &plain] {
        let guard = locks.acquire_free("k", options()).await;
        let shown = format!("{locks:?} {faults:?} {guard:?}");
        // The scheme of the owner tokens, and the field of one.
        assert!(
            !shown.contains("lc1:") && !shown.contains("token: \""),
            "{shown}"
        );
    }
}
