//! Bodies that outlive their dropped caller: `on_drop = finish`.

use std::{
    future::Future,
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use futures_util::FutureExt as _;
use lock_core::{
    Lease, LeaseLost, LockError, LockManager, LockOptions, current_lease, distributed_lock,
    with_locks,
};
use lock_tests::{AcquireFree as _, ReleaseHeld as _, SECOND};
use tokio::{
    sync::Notify,
    task::yield_now,
    time::{sleep, timeout},
};

/// The progress of a body.
#[derive(Clone, Default)]
struct Progress {
    begun: Arc<AtomicUsize>,
    ended: Arc<AtomicUsize>,
}

impl Progress {
    fn seen(&self) -> (usize, usize) {
        (self.begun.load(SeqCst), self.ended.load(SeqCst))
    }

    async fn work(&self) {
        self.begun.fetch_add(1, SeqCst);
        sleep(SECOND).await;
        self.ended.fetch_add(1, SeqCst);
    }
}

#[distributed_lock(key = "k", on_drop = finish, wait = "1h")]
async fn work(progress: Progress) -> Result<usize, LockError> {
    progress.work().await;
    Ok(progress.ended.load(SeqCst))
}

#[distributed_lock(key = ["k", "other"], on_drop = finish, wait = "1h", release = background)]
async fn work_with_two(progress: Progress) -> Result<(), LockError> {
    progress.work().await;
    Ok(())
}

async fn is_held(locks: &LockManager, key: &str) -> bool {
    locks.inspect(key).await.expect("a backend").is_some()
}

/// Drops a call half a second after it began.
async fn dropped(locks: &LockManager, call: impl Future) {
    let call = with_locks(locks.clone(), call);
    assert!(timeout(SECOND / 2, call).await.is_err(), "it takes longer");
}

#[tokio::test(start_paused = true)]
async fn a_body_outlives_its_caller_and_then_releases_the_lock() {
    let (locks, progress) = (LockManager::in_memory(), Progress::default());
    dropped(&locks, work(progress.clone())).await;
    assert_eq!(progress.seen(), (1, 0));
    assert!(is_held(&locks, "k").await, "its body runs");
    sleep(SECOND).await;
    assert_eq!(progress.seen(), (1, 1));
    assert!(!is_held(&locks, "k").await, "its body has ended");
}

#[tokio::test(start_paused = true)]
async fn a_list_of_keys_is_held_until_the_body_ends() {
    let (locks, progress) = (LockManager::in_memory(), Progress::default());
    dropped(&locks, work_with_two(progress.clone())).await;
    for key in ["k", "other"] {
        assert!(is_held(&locks, key).await, "{key}");
    }
    sleep(SECOND).await;
    assert_eq!(progress.seen(), (1, 1));
    for key in ["k", "other"] {
        assert!(!is_held(&locks, key).await, "{key}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_is_dropped_while_it_waits_leaves_the_queue() {
    let (locks, progress) = (LockManager::in_memory(), Progress::default());
    let held = locks.acquire_free("k", LockOptions::default()).await;
    dropped(&locks, work(progress.clone())).await;
    held.release_held().await;
    sleep(SECOND).await;
    assert_eq!(progress.seen(), (0, 0));
    assert!(!is_held(&locks, "k").await);
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_body_resumes_in_the_caller() {
    #[distributed_lock(key = "k", on_drop = finish)]
    async fn panics() -> Result<(), LockError> {
        yield_now().await;
        panic!("on purpose")
    }

    let locks = LockManager::in_memory();
    let call = AssertUnwindSafe(with_locks(locks.clone(), panics()));
    let panic = call.catch_unwind().await.expect_err("a panic");
    assert_eq!(panic.downcast_ref(), Some(&"on purpose"));
    assert!(!is_held(&locks, "k").await);
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_drops_the_body() {
    #[distributed_lock(key = "k", on_drop = finish, max_hold = "1s")]
    async fn hangs(flag: Arc<()>) -> Result<(), LockError> {
        std::future::pending::<()>().await;
        drop(flag);
        Ok(())
    }

    let (locks, flag) = (LockManager::in_memory(), Arc::new(()));
    let dropped_flag = Arc::downgrade(&flag);
    let lost = with_locks(locks, hangs(flag)).await;
    let reason = lost.expect_err("it hangs");
    assert!(
        matches!(
            &reason,
            LockError::Lost {
                reason: LeaseLost::MaxHold,
                ..
            }
        ),
        "{reason}"
    );
    assert_eq!(
        dropped_flag.strong_count(),
        0,
        "it is dropped before the caller gets the error"
    );
}

#[tokio::test(start_paused = true)]
async fn a_body_uses_the_manager_of_its_caller_and_has_its_own_lease() {
    #[distributed_lock(key = "inner")]
    async fn inner() -> Result<(), LockError> {
        Ok(())
    }

    #[distributed_lock(key = "outer", on_drop = finish, lease = lease)]
    async fn outer() -> Result<Lease, LockError> {
        lock_core::assert_held!("outer");
        inner().await?;
        assert_eq!(current_lease().expect("a body").key(), lease.key());
        Ok(lease)
    }

    let lease = with_locks(LockManager::in_memory(), outer()).await;
    assert!(lease.expect("a free lock").is_lost());
}

/// Makes a call inside a body that holds `key`, and returns the text of its refusal.
async fn refused_in_a_body_of(
    key: &str,
    call: impl Future<Output = Result<(), LockError>>,
) -> String {
    let locks = LockManager::in_memory();
    let body = async |_| with_locks(locks.clone(), call).await;
    let refused = locks.run(key, LockOptions::default(), body).await;
    let error = refused.expect("a free lock").expect_err("refused");
    assert!(matches!(error, LockError::Invalid { .. }), "{error}");
    error.to_string()
}

#[tokio::test(start_paused = true)]
async fn a_call_for_a_key_that_the_caller_holds_is_refused() {
    let progress = Progress::default();
    let one = async { work(progress.clone()).await.map(drop) };
    let refused = refused_in_a_body_of("k", one).await;
    assert!(refused.contains("would wait for itself"), "{refused}");
    assert!(refused.contains("on_drop = cancel"), "{refused}");
    let several = work_with_two(progress.clone());
    let refused = refused_in_a_body_of("other", several).await;
    assert!(refused.contains("would wait for itself"), "{refused}");
    assert_eq!(progress.seen(), (0, 0));
}

#[distributed_lock(key = key, mode = shared)]
async fn take(key: &str) -> Result<(), LockError> {
    Ok(())
}

/// Holds a key of its own, and requests another in its body.
#[distributed_lock(key = "between", on_drop = finish)]
async fn ask_for(key: &'static str) -> Result<(), LockError> {
    take(key).await
}

#[tokio::test(start_paused = true)]
async fn a_body_is_refused_the_key_that_its_caller_holds() {
    #[distributed_lock(key = "first", on_drop = finish)]
    async fn through_two(key: &'static str) -> Result<(), LockError> {
        ask_for(key).await
    }

    let refused = refused_in_a_body_of("k", ask_for("k")).await;
    assert!(refused.contains("a caller holds the key"), "{refused}");
    let refused = refused_in_a_body_of("k", through_two("k")).await;
    assert!(refused.contains("a caller holds the key"), "{refused}");
    let refused = refused_in_a_body_of("k", through_two("first")).await;
    assert!(refused.contains("a caller holds the key"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn a_body_does_not_hold_the_leases_of_its_caller() {
    #[distributed_lock(key = "between", on_drop = finish)]
    async fn looks() -> Result<bool, LockError> {
        let own = current_lease().expect("a body").key().to_string();
        let asserted = AssertUnwindSafe(async { lock_core::assert_held!("k") }).catch_unwind();
        Ok(own == "between" && asserted.await.is_err())
    }

    let locks = LockManager::in_memory();
    let body = async |_| with_locks(locks.clone(), looks()).await;
    let looked = locks.run("k", LockOptions::default(), body).await;
    assert!(looked.expect("a free lock").expect("a free lock"));
}

#[tokio::test(start_paused = true)]
async fn a_body_takes_the_key_of_a_caller_that_was_dropped() {
    #[distributed_lock(key = "between", on_drop = finish)]
    async fn asks_later(gone: Arc<Notify>, taken: Arc<Notify>) -> Result<(), LockError> {
        gone.notified().await;
        take("k").await?;
        taken.notify_one();
        Ok(())
    }

    let (locks, gone, taken) = (
        LockManager::in_memory(),
        Arc::<Notify>::default(),
        Arc::<Notify>::default(),
    );
    let call = asks_later(gone.clone(), taken.clone());
    let body = async |_| with_locks(locks.clone(), call).await;
    let outer = locks.run("k", LockOptions::default(), body);
    assert!(timeout(SECOND, outer).await.is_err(), "it waits");
    gone.notify_one();
    let in_time = timeout(SECOND, taken.notified()).await;
    in_time.expect("the key is free");
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_a_body_without_a_caller() {
    let (locks, progress) = (LockManager::in_memory(), Progress::default());
    dropped(&locks, work(progress.clone())).await;
    locks.shutdown(SECOND).await;
    assert_eq!(progress.seen(), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_a_body_at_its_deadline() {
    let (locks, progress) = (LockManager::in_memory(), Progress::default());
    dropped(&locks, work(progress.clone())).await;
    locks.shutdown(SECOND / 4).await;
    sleep(SECOND).await;
    assert_eq!(progress.seen(), (1, 0));
}

#[test]
fn a_body_ends_with_its_runtime() {
    #[distributed_lock(key = "k", on_drop = finish)]
    async fn hangs(begun: Arc<Notify>) -> Result<(), LockError> {
        begun.notify_one();
        std::future::pending().await
    }

    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let (locks, begun) = (LockManager::in_memory(), Arc::<Notify>::default());

    let caller = std::thread::spawn({
        let (handle, begun) = (runtime.handle().clone(), begun.clone());
        move || {
            let _entered = handle.enter();
            futures_executor::block_on(with_locks(locks, hangs(begun)))
        }
    });
    futures_executor::block_on(begun.notified());
    runtime.shutdown_background();
    let error = caller.join().expect("no panic").expect_err("it hangs");
    assert!(matches!(error, LockError::Unavailable { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn the_value_of_a_body_without_a_caller_is_dropped() {
    #[distributed_lock(key = "k", on_drop = finish)]
    async fn makes(flag: Arc<()>) -> Result<Mutex<Arc<()>>, LockError> {
        sleep(SECOND).await;
        Ok(Mutex::new(flag))
    }

    let (locks, flag) = (LockManager::in_memory(), Arc::new(()));
    let dropped_flag = Arc::downgrade(&flag);
    dropped(&locks, makes(flag)).await;
    assert_eq!(dropped_flag.strong_count(), 1);
    sleep(SECOND).await;
    assert_eq!(dropped_flag.strong_count(), 0);
}
