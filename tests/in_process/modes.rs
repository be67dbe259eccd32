//! Shared locks and permits as a caller sees them, in calls and in branches. A body that holds a key asks for it in another
//! mode. In other tests, the keys of a list have options of their own.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use lock_core::{
    FencingToken, LockError, LockKey, LockManager, LockOptions, OnLost, current_lease,
    distributed_lock,
};
use lock_tests::{SECOND, assert_fails, options};
use tokio::time::Instant;

fn shared() -> LockOptions {
    options().shared()
}

fn permits(n: usize) -> LockOptions {
    options().permits(n)
}

/// The largest number of bodies that ran at a time.
#[derive(Default)]
struct Inside {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Inside {
    async fn stay(&self) {
        let now = self.now.fetch_add(1, SeqCst) + 1;
        self.most.fetch_max(now, SeqCst);
        tokio::time::sleep(SECOND).await;
        self.now.fetch_sub(1, SeqCst);
    }
}

/// A call that stays inside for a second, from within a body of the key. It is boxed, since several calls contain its future.
fn call<'a>(
    locks: &'a LockManager,
    options: LockOptions,
    inside: &'a Inside,
) -> Pin<Box<impl Future<Output = Result<(), LockError>> + 'a>> {
    Box::pin(async move { locks.run("k", options, async |_| inside.stay().await).await })
}

/// The key and the reason of an error about a wrong call.
fn invalid<T: std::fmt::Debug>(result: Result<T, LockError>) -> (Option<LockKey>, Arc<str>) {
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
                invalid(locks.run("k", waits(), async |_| ()).await),
                invalid(locks.acquire("k", waits()).await),
                invalid(locks.try_acquire("k", waits()).await),
                invalid(locks.run_all(["k", "other"], waits(), async |_| ()).await),
                invalid(locks.acquire_all(["other", "k"], waits()).await),
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
async fn a_call_that_asks_for_no_more_than_its_body_has_gets_the_same_lease_at_once() {
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
async fn a_key_that_is_held_with_permits_has_no_other_mode_inside_the_body_and_the_reverse() {
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
            let guard = invalid(locks.acquire("k", asked.clone()).await);
            let call = invalid(locks.run("k", asked, async |_| ()).await);
            for (key, reason) in [guard, call] {
                assert_eq!(key, Some(LockKey::new("k")));
                assert!(reason.contains(said), "{reason}");
            }
        });
        body.await.expect("free");
    }
}

#[tokio::test(start_paused = true)]
async fn shared_branches_of_a_body_run_together_whatever_the_body_holds() {
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
        assert_eq!(inside.most.load(SeqCst), 3);
        assert_eq!(start.elapsed().as_secs(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn an_exclusive_branch_excludes_the_shared_ones_and_none_overtakes_it() {
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
    assert_eq!(readers.most.load(SeqCst), 2);
    assert_eq!(start.elapsed().as_secs(), 3, "the writer was alone");
}

#[tokio::test(start_paused = true)]
async fn branches_of_a_body_that_holds_a_permit_have_it_in_turn() {
    let (locks, inside) = (LockManager::in_memory(), Inside::default());
    let start = Instant::now();
    locks
        .run("k", permits(3), async |_| {
            let branch = || call(&locks, permits(3), &inside);
            tokio::try_join!(branch(), branch()).expect("in turn");
        })
        .await
        .expect("free");
    assert_eq!(inside.most.load(SeqCst), 1, "it has one permit");
    assert_eq!(start.elapsed().as_secs(), 2);
}

/// Other branches run beside this one. If they did the same, each would wait for the other.
#[tokio::test(start_paused = true)]
async fn inside_a_shared_call_there_is_no_exclusive_one_though_the_lease_is_exclusive() {
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
            let (_, reason) = invalid(refused);
            assert!(reason.contains("holds the key shared"), "{reason}");
        }
        Box::pin(exclusive()).await.expect("not inside of it");
    });
    body.await.expect("free");
}

#[tokio::test(start_paused = true)]
async fn in_a_list_the_mode_of_a_key_counts_and_not_that_of_the_list() {
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
async fn in_a_list_the_options_of_a_key_differ_in_the_mode_only() {
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
        for (key, reason) in [invalid(guard), invalid(run.await)] {
            assert_eq!(key, Some(LockKey::new("k")));
            let said = format!("the options of this key set `{option}`");
            assert!(reason.starts_with(&said), "{reason}");
        }
    }
    let taken = locks.inspect("first").await.expect("works");
    assert!(taken.is_none());
    // What a key leaves out is as in the list.
    let keys = [
        ("first", LockOptions::default()),
        ("k", LockOptions::default().shared()),
    ];
    let all = of_the_list.on_lost(OnLost::Continue).without_renewal();
    let all = all.max_hold(SECOND).release_in_background();
    let guard = locks.acquire_all(keys, all).await.expect("free");
    assert_eq!(guard.lease().fencing_tokens().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_key_in_two_modes_in_one_list_is_refused_before_anything_is_taken() {
    let locks = LockManager::in_memory();
    for (modes, said) in [
        ([shared(), options()], "once shared and once exclusively"),
        (
            [permits(2), permits(3)],
            "once with 2 permits and once with 3 permits",
        ),
    ] {
        let keys = modes.map(|own| ("k", own));
        let keys = [("first", options())].into_iter().chain(keys);
        let (key, reason) = invalid(locks.acquire_all(keys, options()).await);
        assert_eq!(key, Some(LockKey::new("k")));
        assert!(reason.contains(said), "{reason}");
    }
    let taken = locks.inspect("first").await.expect("works");
    assert!(taken.is_none());
    let twice = [("k", shared()), ("k", shared())];
    let guard = locks.acquire_all(twice, options()).await.expect("one mode");
    assert_eq!(guard.lease().fencing_tokens().len(), 1);
}

#[distributed_lock(key = "k", permits = n, locks = locks)]
async fn has_one_of(locks: &LockManager, n: i128) -> Result<(), LockError> {
    Ok(())
}

#[tokio::test]
async fn permits_out_of_range_are_refused_with_their_key() {
    let locks = LockManager::in_memory();
    let listed = |of_k| [("a", shared()), ("k", of_k)];
    let refused = [
        invalid(locks.acquire("k", permits(0)).await),
        invalid(locks.run("k", permits(1_001), async |_| ()).await),
        invalid(locks.acquire_all(["k"], permits(usize::MAX)).await),
        invalid(locks.acquire_all(listed(permits(0)), options()).await),
        invalid(has_one_of(&locks, -1).await),
        invalid(has_one_of(&locks, i128::MIN).await),
        invalid(has_one_of(&locks, i128::MAX).await),
    ];
    for (key, reason) in refused {
        assert_eq!(key, Some(LockKey::new("k")));
        assert!(reason.starts_with("permits is"), "{reason}");
    }
    has_one_of(&locks, 1_000).await.expect("in range");
}

/// None of the servers exists, so every request that is sent is unavailable.
#[tokio::test]
async fn several_independent_servers_refuse_what_is_not_exclusive_before_anything_is_sent() {
    let urls = [1, 2, 3].map(|port| format!("redis://127.0.0.1:{port}"));
    let builder = LockManager::builder().connect_lazily();
    let locks = builder.redlock(urls).await.expect("lazily");
    let refused = [
        invalid(locks.acquire("k", shared()).await),
        invalid(locks.try_acquire("k", permits(2)).await),
        invalid(locks.run("k", shared(), async |_| ()).await),
        invalid(
            locks
                .acquire_all([("a", options()), ("k", shared())], options())
                .await,
        ),
    ];
    for (key, reason) in refused {
        assert_eq!(key, Some(LockKey::new("k")));
        assert!(reason.contains("acquire it exclusively"), "{reason}");
    }
    let exclusive = [("k", options())];
    let exclusive = locks.acquire_all(exclusive, shared().no_wait()).await;
    assert_fails!(exclusive, LockError::Unavailable { .. });
}

/// The modes in which the key can be taken inside an annotated function, which show the mode that it holds.
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
async fn the_attribute_takes_the_mode_that_it_names() {
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
    let (_, reason) = invalid(has_a_permit(&locks, 70_000).await);
    assert!(reason.starts_with("permits is 65535 or more"), "{reason}");
}
