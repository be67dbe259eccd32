//! Bodies that run once, on the backend inside the process and in virtual time.

use std::{cell::Cell, future::pending, time::Duration};

use lock_core::{
    LeaseLost, LockError, LockManager, OnceOptions, Remember, Remembered, Repeat, assert_held,
    current_lease,
};
use lock_tests::{
    AcquireFree as _, DropFlag, ReleaseHeld as _, SECOND, assert_fails, invalid, options, patient,
};
use tokio::{
    task::{JoinSet, yield_now},
    time::{Instant, sleep},
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
async fn the_body_holds_the_lock_and_may_take_it_again_but_not_run_itself() {
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
    // Nor inside the body of a plain lock.
    let plain = async |_| {
        let nested = run(&locks, 1).await;
        assert_fails!(nested, LockError::Invalid { .. });
    };
    locks.run("k", options(), plain).await.expect("free");
}

#[tokio::test(start_paused = true)]
async fn a_repeat_is_answered_beside_others_that_do_not_wait_and_beside_a_plain_lock() {
    let locks = LockManager::in_memory();
    assert_eq!(run(&locks, 1).await.expect("runs"), 1);
    let repeat = || async {
        let body = async |_| Ok::<_, String>(2);
        locks.run_once("k", once().no_wait(), body).await
    };
    let both = tokio::join!(repeat(), repeat());
    assert_eq!(both.0.expect("replayed"), Ok(1));
    assert_eq!(both.1.expect("replayed"), Ok(1));
    let guard = locks.acquire_free("k", options()).await;
    assert_eq!(repeat().await.expect("replayed"), Ok(1));
    guard.release_held().await;
}

/// A lease that is passed on inside the process has tokens for the next task, and the server is not asked.
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
async fn a_body_ends_with_its_lease_and_the_next_caller_runs() {
    let (locks, faults) = LockManager::in_memory_with_faults();
    let (flag, dropped) = DropFlag::new();
    let body = async move |_| -> Result<u32, String> {
        let _flag = flag;
        pending().await
    };
    let first = locks.run_once("k", once(), body);
    let operator = async {
        yield_now().await;
        faults.lose("k");
    };
    let (lost, ()) = tokio::join!(first, operator);
    let is_lost = matches!(
        lost,
        Err(LockError::Lost {
            reason: LeaseLost::TakenAway,
            ..
        })
    );
    assert!(is_lost && dropped.is_true(), "{lost:?}");
    let bounded = once().max_hold(SECOND);
    let endless = async |_| -> Result<u32, String> { pending().await };
    let lost = locks.run_once("k", bounded, endless).await;
    let is_lost = matches!(
        lost,
        Err(LockError::Lost {
            reason: LeaseLost::MaxHold,
            ..
        })
    );
    assert!(is_lost, "{lost:?}");
    assert_eq!(run(&locks, 3).await.expect("runs"), 3);
}

#[tokio::test(start_paused = true)]
async fn a_result_that_cannot_be_stored_is_the_runners_alone() {
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
    // If the fault passes in time, the result is kept.
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
    // A result is given whatever the lock holds.
    faults.busy("k");
    assert_eq!(run(&locks, 6).await.expect("replayed"), 5);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_is_dropped_while_it_waits_leaves_and_the_others_get_the_result() {
    let locks = LockManager::in_memory();
    let start = Instant::now();
    let slow = async |_| {
        sleep(SECOND * 5).await;
        Ok::<_, String>(1_u32)
    };
    let impatient = tokio::time::timeout(SECOND, run(&locks, 2));
    let (first, dropped, third) = tokio::join!(
        locks.run_once("k", once(), slow),
        async {
            yield_now().await;
            impatient.await
        },
        async {
            yield_now().await;
            run(&locks, 3).await
        }
    );
    assert!(dropped.is_err(), "{dropped:?}");
    assert_eq!(first.expect("runs"), Ok(1));
    assert_eq!(third.expect("waits"), 1);
    assert_eq!(start.elapsed(), SECOND * 5);
}

/// A type of the user's own, of which a part is remembered.
#[derive(Debug, PartialEq)]
enum Page {
    Text(String),
    Huge,
    Missing,
}

impl Remember for Page {
    fn remember(self) -> (Self, Remembered) {
        let remembered = match &self {
            Self::Text(text) => Remembered::Bytes(text.clone().into_bytes()),
            Self::Huge => Remembered::Success,
            Self::Missing => Remembered::Nothing,
        };
        (self, remembered)
    }

    fn recall(bytes: &[u8]) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        Ok(Self::Text(String::from_utf8(bytes.to_vec())?))
    }
}

#[tokio::test(start_paused = true)]
async fn a_type_of_the_users_says_what_is_remembered_of_it() {
    let locks = LockManager::in_memory();
    let count = Cell::new(0);
    let page = async |key: &str, page: fn() -> Page| {
        let body = async |_| {
            count.set(count.get() + 1);
            page()
        };
        locks.run_once(key, once(), body).await
    };
    for _ in 0..2 {
        let text = page("text", || Page::Text("hello".to_owned())).await;
        assert_eq!(text.expect("kept"), Page::Text("hello".to_owned()));
    }
    assert_eq!(count.take(), 1);
    assert_eq!(page("huge", || Page::Huge).await.expect("runs"), Page::Huge);
    let repeat = page("huge", || Page::Huge).await;
    let is_refused = matches!(
        repeat,
        Err(LockError::Repeated {
            reason: Repeat::NotKept,
            ..
        })
    );
    assert!(is_refused && count.take() == 1, "{repeat:?}");
    for _ in 0..2 {
        let missing = page("missing", || Page::Missing).await;
        assert_eq!(missing.expect("runs"), Page::Missing);
    }
    assert_eq!(count.take(), 2);
}

#[tokio::test(start_paused = true)]
async fn options_out_of_range_are_refused_before_a_request() {
    let (locks, faults) = LockManager::in_memory_with_faults();
    faults.unavailable();
    let refused = async |options: OnceOptions, says: &str| {
        let body = async |_| -> Result<u32, String> { panic!("it must not run") };
        let refused = locks.run_once("k", options, body).await;
        invalid(&refused.expect_err("refused"), says);
    };
    refused(OnceOptions::keep(Duration::ZERO), "keep is").await;
    refused(OnceOptions::keep(SECOND * 60 * 60 * 24 * 366), "keep is").await;
    refused(once().ttl(Duration::from_millis(1)), "ttl is").await;
    refused(once().max_hold(Duration::ZERO), "max_hold is").await;
}
