//! Bodies that run once, on the backend inside the process and in virtual time.

use lock_core::{LockError, LockManager, OnceOptions, assert_held, current_lease};
use lock_tests::{AcquireFree as _, ReleaseHeld as _, SECOND, assert_fails, options, patient};
use tokio::{
    task::{JoinSet, yield_now},
    time::sleep,
};

fn once() -> OnceOptions {
    OnceOptions::keep(SECOND * 60)
        .ttl(SECOND * 10)
        .wait(SECOND * 30)
}

async fn run(locks: &LockManager, value: u32) -> Result<u32, LockError> {
    let ran: Result<Result<u32, String>, _> =
        locks.run_once("k", once(), async |_| Ok(value)).await;
    ran.map(|value| value.expect("it succeeds"))
}

#[tokio::test(start_paused = true)]
async fn a_body_may_take_its_lock_again_but_not_run_itself() {
    let locks = LockManager::in_memory();
    let body = async |_| {
        assert_held!("k");
        assert!(current_lease().is_some());
        let again = locks.acquire("k", options()).await.expect("re-entered");
        again.release_held().await;
        let nested = run(&locks, 1).await;
        assert_fails!(nested, LockError::Invalid { .. });
        Ok::<_, String>(())
    };
    locks
        .run_once("k", once(), body)
        .await
        .expect("free")
        .expect("it succeeds");
    // It may not run inside the body of a plain lock either.
    let plain = async |_| {
        let nested = run(&locks, 1).await;
        assert_fails!(nested, LockError::Invalid { .. });
    };
    locks.run("k", options(), plain).await.expect("free");
}

/// A lease that is handed over inside the process has a token for the next task, so the server is not asked for a result.
#[tokio::test(start_paused = true)]
async fn a_lease_is_not_passed_to_a_run_that_has_a_result() {
    let locks = LockManager::in_memory();
    assert_eq!(run(&locks, 1).await.expect("runs"), 1);
    let guard = locks.acquire_free("k", patient()).await;
    let mut waiting = JoinSet::new();
    for _ in 0..3 {
        let locks = locks.clone();
        waiting.spawn(async move {
            locks
                .acquire_free("k", patient())
                .await
                .release_held()
                .await;
        });
        yield_now().await;
    }
    let once = tokio::spawn({
        let locks = locks.clone();
        async move { run(&locks, 2).await }
    });
    yield_now().await;
    guard.release_held().await;
    assert_eq!(once.await.expect("no panic").expect("replayed"), 1);
    waiting.join_all().await;
}

#[tokio::test(start_paused = true)]
async fn a_result_that_cannot_be_stored_is_given_to_its_runner_alone() {
    let (locks, faults) = LockManager::in_memory_with_faults();
    let body = async |_| {
        faults.unavailable();
        Ok::<_, String>(1)
    };
    let first = locks.run_once("k", once(), body).await.expect("it ran");
    assert_eq!(first, Ok(1));
    // The release is repeated until the lease ends.
    sleep(SECOND * 30).await;
    faults.heal();
    assert_eq!(run(&locks, 2).await.expect("runs again"), 2);
    // If the backend is back within the lease, the result is stored.
    faults.forget("k");
    let body = async |_| {
        faults.unavailable_for(SECOND * 3);
        Ok::<_, String>(3)
    };
    let third = locks.run_once("k", once(), body).await.expect("it ran");
    assert_eq!(third, Ok(3));
    assert_eq!(run(&locks, 4).await.expect("after the fault"), 3);
    faults.forget("k");
    assert_eq!(run(&locks, 5).await.expect("evicted"), 5);
    // A repeat gets the result even while another client holds the lock.
    faults.busy("k");
    assert_eq!(run(&locks, 6).await.expect("replayed"), 5);
}
