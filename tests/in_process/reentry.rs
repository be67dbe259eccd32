//! A body that takes its own key again: in a call, in branches, in spawned tasks. `texts.rs` has the errors for busy keys.

use std::{
    cell::Cell,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use futures_util::{StreamExt, stream};
use lock_core::{LockError, LockManager, distributed_lock, inspect::HeldBy};
use lock_tests::{AcquireFree as _, ReleaseHeld as _, SECOND, options};
use tokio::{task, time::Instant};

/// Counts the bodies that are inside at a time.
#[derive(Clone, Default)]
pub(crate) struct Inside(Arc<(AtomicUsize, AtomicUsize)>);

impl Inside {
    pub(crate) async fn stay(&self, time: Duration) {
        let (now, most) = &*self.0;
        most.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
        tokio::time::sleep(time).await;
        now.fetch_sub(1, SeqCst);
    }

    pub(crate) fn most(&self) -> usize {
        self.0.1.load(SeqCst)
    }
}

#[distributed_lock(key = "account:{id}", wait = "20s", locks = locks)]
async fn charge(locks: &LockManager, id: u64, inside: Inside) -> Result<(), LockError> {
    inside.stay(SECOND).await;
    Ok(())
}

#[distributed_lock(key = ["account:{from}", "account:{to}"], wait = "20s", locks = locks)]
async fn transfer(
    locks: &LockManager,
    from: u64,
    to: u64,
    inside: Inside,
) -> Result<(), LockError> {
    inside.stay(SECOND).await;
    Ok(())
}

/// A future may be moved between two polls, for example by `select!` or a pool of tasks.
#[tokio::test(start_paused = true)]
#[expect(
    clippy::async_yields_async,
    reason = "another task continues the future"
)]
async fn a_body_that_moves_to_another_task_takes_its_key_again() {
    let locks = LockManager::in_memory();
    let run = async move {
        let body = async |_| {
            task::yield_now().await;
            locks
                .acquire_free("account:7", options())
                .await
                .release_held()
                .await;
        };
        locks.run("account:7", options(), body).await.expect("free");
    };
    let mut run = Box::pin(run);
    let first = task::spawn(async move {
        assert!(futures_util::poll!(&mut run).is_pending());
        run
    });
    let run = first.await.expect("no panic");
    task::spawn(run).await.expect("it holds its key");
}

#[tokio::test(start_paused = true)]
async fn branches_of_a_body_take_turns_with_its_key() {
    let (locks, inside) = (LockManager::in_memory(), Inside::default());
    let start = Instant::now();
    let body = locks.run("account:7", options(), async |_| {
        tokio::try_join!(
            charge(&locks, 7, inside.clone()),
            charge(&locks, 7, inside.clone()),
            charge(&locks, 7, inside.clone()),
        )
    });
    body.await.expect("held").expect("in turn");
    assert_eq!(inside.most(), 1);
    assert_eq!(start.elapsed().as_secs(), 3, "one after the other");
}

#[tokio::test(start_paused = true)]
async fn branches_are_served_first_come_first_served() {
    let locks = LockManager::in_memory();
    let served = std::cell::RefCell::new(Vec::new());
    locks
        .run("k", options(), async |_| {
            let calls = stream::iter(0..20).for_each_concurrent(8, async |n| {
                let call = locks.run("k", options().wait_forever(), async |_| {
                    task::yield_now().await;
                    served.borrow_mut().push(n);
                });
                call.await.expect("in turn");
            });
            calls.await;
        })
        .await
        .expect("free");
    assert_eq!(served.into_inner(), (0..20).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_nested_call_does_not_wait_even_in_branches() {
    let locks = LockManager::in_memory();
    let inner = Inside::default();
    let outer = async || {
        let call = locks.run("account:7", options(), async |_| {
            charge(&locks, 7, inner.clone()).await
        });
        call.await.expect("in turn")
    };
    let start = Instant::now();
    locks
        .run("account:7", options(), async |_| {
            tokio::try_join!(outer(), outer()).expect("in turn");
        })
        .await
        .expect("free");
    assert_eq!(inner.most(), 1);
    assert_eq!(start.elapsed().as_secs(), 2);
}

#[tokio::test(start_paused = true)]
async fn branches_with_lists_of_keys_do_not_deadlock() {
    let (locks, inside) = (LockManager::in_memory(), Inside::default());
    let start = Instant::now();
    locks
        .run_all(["account:1", "account:2"], options(), async |_| {
            tokio::try_join!(
                transfer(&locks, 1, 2, inside.clone()),
                transfer(&locks, 2, 1, inside.clone()),
            )
        })
        .await
        .expect("free")
        .expect("in turn");
    assert_eq!(inside.most(), 1);
    assert_eq!(start.elapsed().as_secs(), 2);
}

#[tokio::test(start_paused = true)]
async fn branches_with_different_keys_run_together() {
    let (locks, inside) = (LockManager::in_memory(), Inside::default());
    let start = Instant::now();
    locks
        .run_all(["account:1", "account:2"], options(), async |_| {
            tokio::try_join!(
                charge(&locks, 1, inside.clone()),
                charge(&locks, 2, inside.clone()),
            )
        })
        .await
        .expect("free")
        .expect("not in turn");
    assert_eq!(inside.most(), 2);
    assert_eq!(start.elapsed().as_secs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_branch_is_refused_after_its_wait_and_learns_that_another_branch_has_the_key() {
    let locks = LockManager::in_memory();
    let start = Instant::now();
    let branch = async |wait: Duration| {
        let call = locks.run("k", options().wait(wait), async |_| {
            tokio::time::sleep(SECOND * 5).await;
        });
        call.await
    };
    let body = locks.run("k", options(), async |_| {
        let (first, at_once, later, last) = tokio::join!(
            branch(SECOND),
            branch(Duration::ZERO),
            branch(SECOND * 2),
            async {
                let busy = branch(SECOND * 3).await;
                assert_eq!(start.elapsed(), SECOND * 3);
                busy
            }
        );
        first.expect("the first of them");
        for busy in [at_once, later, last] {
            let busy = busy.expect_err("another branch has it");
            assert_eq!(busy.held_by(), Some(HeldBy::ThisBody));
            assert!(
                busy.to_string().contains("another branch of the same body"),
                "{busy}"
            );
        }
        // The dropped waiters have left the queue.
        branch(Duration::ZERO).await.expect("free again");
    });
    Box::pin(body).await.expect("free");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_branch_lets_the_next_one_in() {
    let locks = LockManager::in_memory();
    let run = async || {
        locks
            .run("k", options(), async |_| tokio::time::sleep(SECOND).await)
            .await
    };
    let body = locks.run("k", options(), async |_| {
        let hangs = locks.run("k", options(), |_| std::future::pending::<()>());
        let hangs = tokio::time::timeout(SECOND, hangs);
        // A waiting branch is dropped, too.
        let waits = tokio::time::timeout(SECOND / 2, run());
        let (hung, waited, next) = tokio::join!(hangs, waits, run());
        assert!(hung.is_err() && waited.is_err());
        next.expect("in turn");
    });
    Box::pin(body).await.expect("free");
}

#[tokio::test(start_paused = true)]
async fn guards_share_the_lease_of_their_body_even_in_branches() {
    let locks = LockManager::in_memory();
    locks
        .run("account:7", options(), async |_| {
            let guards = tokio::try_join!(
                locks.acquire("account:7", options()),
                locks.acquire("account:7", options())
            );
            let _guards = guards.expect("at once");
            charge(&locks, 7, Inside::default()).await.expect("at once");
        })
        .await
        .expect("free");
}

#[tokio::test(start_paused = true)]
async fn a_task_of_a_local_set_does_not_hold_the_key_of_the_body() {
    let locks = LockManager::in_memory();
    let inside = Inside::default();
    // The future is driven in a task, which has an id, and on a thread that blocks, which has none.
    let drives = || {
        let (locks, inside) = (locks.clone(), inside.clone());
        async move {
            let body = locks.run("account:7", options(), async |_| {
                let set = task::LocalSet::new();
                let entered = Rc::new(Cell::new(false));
                let (of_task, noted) = (locks.clone(), entered.clone());
                set.spawn_local(async move {
                    let call = of_task.run("account:7", options().no_wait(), async |_| {
                        noted.set(true);
                    });
                    let busy = call.await.expect_err("the body has it");
                    assert!(
                        matches!(busy.held_by(), Some(HeldBy::ThisProcess(_))),
                        "{busy}"
                    );
                    assert!(lock_core::current_lease().is_none());
                });
                set.await;
                assert!(!entered.get());
                // The body itself still has its lease.
                charge(&locks, 7, inside).await.expect("at once");
            });
            body.await.expect("free");
        }
    };
    drives().await;
    task::LocalSet::new()
        .run_until(async move { task::spawn_local(drives()).await })
        .await
        .expect("no panic");
}
