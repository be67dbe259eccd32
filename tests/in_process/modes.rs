//! The modes of a lock in nested calls, in branches of a body, in lists of keys, and in the attribute.

use std::{pin::Pin, sync::Arc};

use lock_core::{
    FencingToken, LockError, LockKey, LockManager, LockOptions, OnLost, current_lease,
    distributed_lock,
};
use lock_tests::{SECOND, options};
use tokio::time::Instant;

use crate::reentry::Inside;

fn shared() -> LockOptions {
    options().shared()
}

fn permits(n: usize) -> LockOptions {
    options().permits(n)
}

/// Calls for the key from within a body of it, and stays inside for a second. Boxed, since several calls contain the future.
fn call<'a>(
    locks: &'a LockManager,
    options: LockOptions,
    inside: &'a Inside,
) -> Pin<Box<impl Future<Output = Result<(), LockError>> + 'a>> {
    Box::pin(async move {
        locks
            .run("k", options, async |_| inside.stay(SECOND).await)
            .await
    })
}

/// Returns the key and the reason of an `Invalid` error.
fn refusal<T: std::fmt::Debug>(result: Result<T, LockError>) -> (Option<LockKey>, Arc<str>) {
    match result.expect_err("must be refused") {
        LockError::Invalid { key, reason, .. } => (key, reason),
        other => panic!("not `Invalid`: {other:?}"),
    }
}

fn token_of_the_body() -> FencingToken {
    current_lease().expect("in a body").fencing_token()
}

#[tokio::test(start_paused = true)]
async fn a_body_that_holds_the_key_shared_cannot_have_it_exclusively() {
    let locks = LockManager::in_memory();
    let start = Instant::now();
    locks
        .run("k", shared(), async |_| {
            let waits = || options().wait_forever();
            let refused = [
                refusal(locks.run("k", waits(), async |_| ()).await),
                refusal(locks.acquire("k", waits()).await),
                refusal(locks.try_acquire("k", waits()).await),
                refusal(locks.run_all(["k", "other"], waits(), async |_| ()).await),
                refusal(locks.acquire_all(["other", "k"], waits()).await),
            ];
            for (key, reason) in refused {
                assert_eq!(key, Some(LockKey::new("k")));
                assert!(reason.contains("would wait for its own share"), "{reason}");
            }
        })
        .await
        .expect("free");
    assert_eq!(start.elapsed().as_secs(), 0);
    let other = locks.inspect("other").await.expect("works");
    assert!(other.is_none(), "nothing was taken");
}

#[tokio::test(start_paused = true)]
async fn a_call_for_no_more_than_its_body_holds_gets_the_lease_of_the_body() {
    let locks = LockManager::in_memory();
    for (held, asked) in [
        (options(), shared()),
        (shared(), shared()),
        (permits(2), permits(2)),
        (permits(2), permits(3)),
    ] {
        let body = locks.run("k", held, async |lease| {
            let token = lease.fencing_token();
            let guard = locks.acquire("k", asked.clone().no_wait()).await;
            assert_eq!(guard.expect("held").lease().fencing_token(), token);
            let call = locks.run("k", asked.no_wait(), async |_| token_of_the_body());
            assert_eq!(call.await.expect("held"), token);
        });
        body.await.expect("free");
        // A shared lease is kept for a second.
        tokio::time::sleep(SECOND * 2).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_cannot_mix_permits_with_another_mode_of_its_key() {
    let locks = LockManager::in_memory();
    for (held, asked, said) in [
        (
            permits(2),
            options(),
            "with 2 permits, but asks for it exclusively",
        ),
        (
            permits(1),
            shared(),
            "with one permit, but asks for it shared",
        ),
        (
            options(),
            permits(3),
            "exclusively, but asks for it with 3 permits",
        ),
        (
            shared(),
            permits(3),
            "shared, but asks for it with 3 permits",
        ),
    ] {
        let body = locks.run("k", held, async |_| {
            let guard = refusal(locks.acquire("k", asked.clone()).await);
            let call = refusal(locks.run("k", asked, async |_| ()).await);
            for (key, reason) in [guard, call] {
                assert_eq!(key, Some(LockKey::new("k")));
                assert!(reason.contains(said), "{reason}");
            }
        });
        body.await.expect("free");
    }
}

#[tokio::test(start_paused = true)]
async fn shared_branches_of_an_exclusive_or_shared_body_run_together() {
    for held in [options(), shared()] {
        let (locks, inside) = (LockManager::in_memory(), Inside::default());
        let start = Instant::now();
        locks
            .run("k", held, async |_| {
                let branch = || call(&locks, shared(), &inside);
                tokio::try_join!(branch(), branch(), branch()).expect("held");
            })
            .await
            .expect("free");
        assert_eq!(inside.most(), 3);
        assert_eq!(start.elapsed().as_secs(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn an_exclusive_branch_excludes_shared_ones_and_is_not_overtaken() {
    let locks = LockManager::in_memory();
    let (readers, writer) = (Inside::default(), Inside::default());
    let start = Instant::now();
    locks
        .run("k", options(), async |_| {
            let read = || call(&locks, shared().wait_forever(), &readers);
            let write = || call(&locks, options().wait_forever(), &writer);
            // Two run together, one alone, and two together again.
            tokio::try_join!(read(), read(), write(), read(), read()).expect("in turn");
        })
        .await
        .expect("free");
    assert_eq!(readers.most(), 2);
    assert_eq!(start.elapsed().as_secs(), 3, "the writer was alone");
}

#[tokio::test(start_paused = true)]
async fn branches_of_a_body_with_a_permit_take_turns() {
    let (locks, inside) = (LockManager::in_memory(), Inside::default());
    let start = Instant::now();
    locks
        .run("k", permits(3), async |_| {
            let branch = || call(&locks, permits(3), &inside);
            tokio::try_join!(branch(), branch()).expect("in turn");
        })
        .await
        .expect("free");
    assert_eq!(inside.most(), 1, "it has one permit");
    assert_eq!(start.elapsed().as_secs(), 2);
}

/// If two shared branches requested the key exclusively, each would wait for the other.
#[tokio::test(start_paused = true)]
async fn a_shared_call_cannot_become_exclusive_even_under_an_exclusive_lease() {
    let locks = LockManager::in_memory();
    let exclusive = async || locks.run("k", options(), async |_| ()).await;
    let inside_shared = async || {
        let call = locks.run("k", shared(), async |_| Box::pin(exclusive()).await);
        call.await.expect("held")
    };
    let further_inside = async || {
        let call = locks.run("k", shared(), async |_| Box::pin(inside_shared()).await);
        call.await.expect("held")
    };
    let body = locks.run("k", options(), async |_| {
        for refused in [
            Box::pin(inside_shared()).await,
            Box::pin(further_inside()).await,
        ] {
            let (_, reason) = refusal(refused);
            assert!(reason.contains("holds the key shared"), "{reason}");
        }
        Box::pin(exclusive())
            .await
            .expect("outside the shared calls");
    });
    body.await.expect("free");
}

#[tokio::test(start_paused = true)]
async fn the_mode_of_a_key_takes_precedence_over_that_of_its_list() {
    let locks = LockManager::in_memory();
    let may_write = async |key: &str| locks.acquire(key, options()).await.is_ok();
    let keys = || {
        [
            ("k", options()),
            ("other", shared()),
            ("exports", permits(2)),
        ]
    };
    let run = locks.run_all(keys(), permits(0), async |_| {
        (
            may_write("k").await,
            may_write("other").await,
            locks.acquire("exports", permits(3)).await.is_ok(),
            locks.acquire_all(keys(), options()).await.is_ok(),
        )
    });
    assert_eq!(run.await.expect("free"), (true, false, true, true));
}

#[tokio::test(start_paused = true)]
async fn the_options_of_a_key_in_a_list_may_differ_only_in_the_mode() {
    let locks = LockManager::in_memory();
    let of_the_list = options().wait(SECOND).max_hold(SECOND * 60);
    for (own, option) in [
        (LockOptions::new(SECOND), "ttl"),
        (of_the_list.clone().wait_forever(), "wait"),
        (of_the_list.clone().no_wait(), "wait"),
        (of_the_list.clone().max_hold(SECOND), "max_hold"),
        (of_the_list.clone().min_hold(SECOND), "min_hold"),
        (of_the_list.clone().without_renewal(), "without_renewal"),
        (of_the_list.clone().on_lost(OnLost::Continue), "on_lost"),
        (
            of_the_list.clone().release_in_background(),
            "release_in_background",
        ),
    ] {
        let keys = || [("first", of_the_list.clone()), ("k", own.clone().shared())];
        let guard = locks.acquire_all(keys(), of_the_list.clone()).await;
        let run = locks.run_all(keys(), of_the_list.clone(), async |_| ());
        for (key, reason) in [refusal(guard), refusal(run.await)] {
            assert_eq!(key, Some(LockKey::new("k")));
            let said = format!("the options of this key set `{option}`");
            assert!(reason.starts_with(&said), "{reason}");
        }
    }
    let taken = locks.inspect("first").await.expect("works");
    assert!(taken.is_none());
    // Options that a key does not set are those of the list.
    let keys = [
        ("first", LockOptions::default()),
        ("k", LockOptions::default().shared()),
    ];
    let all = of_the_list.on_lost(OnLost::Continue).without_renewal();
    let all = all.max_hold(SECOND).release_in_background();
    let guard = locks.acquire_all(keys, all).await.expect("free");
    assert_eq!(guard.lease().fencing_tokens().len(), 2);
}

/// Tries the key in each mode inside an annotated function. The outcome shows the mode that the function holds.
async fn allowed(locks: &LockManager, key: &str) -> [bool; 3] {
    let asks = |options| async { locks.acquire(key, options).await.is_ok() };
    [
        asks(options()).await,
        asks(shared()).await,
        asks(permits(1)).await,
    ]
}

#[distributed_lock(key = "k", mode = shared, locks = locks)]
async fn reads(locks: &LockManager) -> Result<[bool; 3], LockError> {
    Ok(allowed(locks, "k").await)
}

#[distributed_lock(key = "k", mode = exclusive, locks = locks)]
async fn writes(locks: &LockManager) -> Result<[bool; 3], LockError> {
    Ok(allowed(locks, "k").await)
}

#[distributed_lock(key = "k", permits = n, locks = locks)]
async fn has_a_permit(locks: &LockManager, n: usize) -> Result<[bool; 3], LockError> {
    Ok(allowed(locks, "k").await)
}

#[distributed_lock(key = ["a:{n}", LockKey::new("b"), "c"], mode = [shared, exclusive, shared], locks = locks)]
async fn has_several(locks: &LockManager, n: u8) -> Result<[[bool; 3]; 3], LockError> {
    Ok([
        allowed(locks, &format!("a:{n}")).await,
        allowed(locks, "b").await,
        allowed(locks, "c").await,
    ])
}

#[tokio::test(start_paused = true)]
async fn the_attribute_acquires_in_the_mode_that_it_names() {
    const SHARED: [bool; 3] = [false, true, false];
    const EXCLUSIVE: [bool; 3] = [true, true, false];
    let locks = LockManager::in_memory();
    assert_eq!(reads(&locks).await.expect("free"), SHARED);
    assert_eq!(writes(&locks).await.expect("free"), EXCLUSIVE);
    assert_eq!(
        has_a_permit(&locks, 3).await.expect("free"),
        [false, false, true]
    );
    let several = has_several(&locks, 1).await.expect("free");
    assert_eq!(several, [SHARED, EXCLUSIVE, SHARED]);
    let (_, reason) = refusal(has_a_permit(&locks, 70_000).await);
    assert!(reason.starts_with("permits is 65535 or more"), "{reason}");
}
