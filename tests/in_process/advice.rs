//! The advice in errors: that the manager was shut down, and that two keys belong in one list. `texts.rs` has the whole texts.

use lock_core::{LockError, LockKey, LockManager, LockOptions};
use lock_tests::{AcquireFree as _, ReleaseHeld as _, SECOND, options};

fn tries() -> LockOptions {
    options().no_wait()
}

#[tokio::test(start_paused = true)]
async fn a_manager_that_was_shut_down_says_so_whatever_is_wrong_with_the_request() {
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
async fn a_busy_lock_suggests_one_list_to_a_task_that_holds_another_key() {
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
    // A task that holds nothing else is not told to write the list that it wrote.
    let listed = locks.acquire_all(["a", "b"], tries()).await;
    let busy = listed.expect_err("busy").to_string();
    assert!(
        busy.contains("`b`") && !busy.contains("in one call"),
        "{busy}"
    );
    other.release_held().await;
}
