//! The advice in errors: a manager that was shut down, and locks inside locks.

use lock_core::{LockError, LockKey, LockManager, LockOptions};
use lock_tests::{AcquireFree as _, ReleaseHeld as _, SECOND, options};

fn tries() -> LockOptions {
    options().no_wait()
}

#[tokio::test(start_paused = true)]
async fn a_manager_that_was_shut_down_says_so_before_anything_else() {
    let locks = LockManager::in_memory();
    locks.shutdown(SECOND).await;
    let shut_down = |error: LockError| {
        let LockError::Unavailable { source, .. } = error else {
            panic!("not `Unavailable`: {error:?}");
        };
        assert!(source.to_string().contains("shut down"), "{source}");
    };
    let too_short = || options().ttl(SECOND / 1_000);
    for (key, options) in [("", options()), ("k", too_short())] {
        let acquired = locks.acquire(key, options.clone()).await;
        shut_down(acquired.expect_err("shut down"));
        let tried = locks.try_acquire(key, options.clone()).await;
        shut_down(tried.expect_err("shut down"));
        let ran = locks.run(key, options.clone(), async |_| {}).await;
        shut_down(ran.expect_err("shut down"));
        for keys in [vec![key], vec![key, "other"]] {
            let acquired = locks.acquire_all(keys.clone(), options.clone()).await;
            shut_down(acquired.expect_err("shut down"));
            let ran = locks.run_all(keys, options.clone(), async |_| {}).await;
            shut_down(ran.expect_err("shut down"));
        }
    }
    let no_keys = locks.acquire_all(Vec::<LockKey>::new(), options()).await;
    shut_down(no_keys.expect_err("shut down"));
}

const ONE_LIST: &str = "this task already holds `a`: acquire both in one call";

#[tokio::test(start_paused = true)]
async fn a_busy_lock_inside_a_body_proposes_one_list() {
    let locks = LockManager::in_memory();
    let _other = tokio::spawn({
        let locks = locks.clone();
        async move { locks.acquire_free("b", options()).await }
    })
    .await
    .expect("no panic");
    let busy = locks.run("a", options(), async |_| locks.acquire("b", tries()).await);
    let busy = busy.await.expect("free").expect_err("busy").to_string();
    assert!(busy.contains(ONE_LIST), "{busy}");
    assert!(
        busy.contains("`acquire_all`") && busy.contains("`key = ["),
        "{busy}"
    );
    assert!(busy.contains("another task of this process"), "{busy}");
    let busy = locks.acquire("b", tries()).await.expect_err("busy");
    assert!(!busy.to_string().contains("in one call"), "{busy}");
}

#[tokio::test(start_paused = true)]
async fn a_busy_lock_beside_a_guard_proposes_one_list() {
    let locks = LockManager::in_memory();
    let hold = |key: &'static str| {
        let locks = locks.clone();
        async move { locks.acquire_free(key, options()).await }
    };
    let other = tokio::spawn(hold("b")).await.expect("no panic");
    let first = hold("a").await;
    let busy = locks.acquire("b", tries()).await.expect_err("busy");
    assert!(busy.to_string().contains(ONE_LIST), "{busy}");
    let listed = locks.acquire_all(["c", "b"], tries()).await;
    let busy = listed.expect_err("busy").to_string();
    assert!(busy.contains(ONE_LIST), "{busy}");
    first.release_held().await;
    // The keys of one list are no reason to write one.
    let listed = locks.acquire_all(["a", "b"], tries()).await;
    let busy = listed.expect_err("busy").to_string();
    assert!(
        busy.contains("`b`") && !busy.contains("in one call"),
        "{busy}"
    );
    other.release_held().await;
}

#[tokio::test(start_paused = true)]
async fn a_key_that_the_task_holds_itself_is_no_other_key() {
    let locks = LockManager::in_memory();
    let guard = locks.acquire_free("a", options()).await;
    let busy = locks.acquire("a", tries()).await.expect_err("busy");
    let text = busy.to_string();
    assert!(text.contains("this task has held it"), "{text}");
    assert!(!text.contains("in one call"), "{text}");
    guard.release_held().await;
}
