//! Several keys at once, on the backend inside the process and in virtual time.

use std::{future::pending, time::Duration};

use lock_core::{
    FencingToken, LeaseLost, LockError, LockGuard, LockManager, LockOptions, OnLost, assert_held,
    current_lease,
};
use lock_tests::{AcquireFree as _, ReleaseHeld as _, SECOND, assert_fails, options};
use tokio::{
    task::{JoinHandle, yield_now},
    time::{Instant, advance, sleep, timeout},
};

/// Waits for a future with a time-out in virtual time.
async fn in_time<T>(ends: impl Future<Output = T>) -> T {
    timeout(SECOND * 3600, ends).await.expect("ends")
}

/// Returns `true` if the key is free after all requests in flight have arrived.
async fn is_free(locks: &LockManager, key: &str) -> bool {
    yield_now().await;
    locks.inspect(key).await.expect("works").is_none()
}

/// Lets another task hold a key for some time.
async fn hold(locks: &LockManager, key: &'static str, time: Duration) -> JoinHandle<()> {
    let guard = locks.acquire_free(key, options()).await;
    tokio::spawn(async move {
        sleep(time).await;
        guard.release_held().await;
    })
}

/// Makes another task wait for keys indefinitely.
fn wait_for(
    locks: &LockManager,
    keys: &'static [&'static str],
    options: LockOptions,
) -> JoinHandle<Result<LockGuard, LockError>> {
    let locks = locks.clone();
    let keys = keys.iter().copied();
    tokio::spawn(async move { locks.acquire_all(keys, options.wait_forever()).await })
}

fn tokens(guard: &LockGuard) -> Vec<(String, FencingToken)> {
    let tokens = guard.lease().fencing_tokens().into_iter();
    tokens
        .map(|(key, token)| (key.to_string(), token))
        .collect()
}

fn is_lost(result: &Result<(), LockError>, of: &str, how: LeaseLost) -> bool {
    matches!(result, Err(LockError::Lost { key, reason, .. }) if key.as_str() == of && *reason == how)
}

mod acquiring {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn all_keys_are_held_by_one_guard_and_released_with_it() {
        let locks = LockManager::in_memory();
        let guard = locks.acquire_all(["b", "a", "c"], options()).await;
        let guard = guard.expect("free");
        for key in ["a", "b", "c"] {
            let tried = locks.try_acquire(key, options()).await.expect("a reply");
            assert!(tried.is_none(), "{key}");
        }
        let free = locks.try_acquire("d", options()).await.expect("a reply");
        assert!(free.is_some());
        guard.release_held().await;
        for key in ["a", "b", "c"] {
            assert!(is_free(&locks, key).await, "{key}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_key_of_a_list_is_the_key_of_its_lease() {
        let locks = LockManager::in_memory();
        let guard = locks.acquire_all(["b", "a", "b"], options()).await;
        let guard = guard.expect("free, and taken once");
        let tokens = tokens(&guard);
        let keys: Vec<_> = tokens.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(keys, ["b", "a"]);
        let lease = guard.lease();
        assert_eq!((guard.key().as_str(), lease.key().as_str()), ("b", "b"));
        assert_eq!(lease.fencing_token(), tokens[0].1);
        assert_ne!(tokens[0].1, tokens[1].1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_busy_key_leaves_the_others_free() {
        let locks = LockManager::in_memory();
        let _other = locks.acquire_free("b", options()).await;
        let refused = in_time(locks.acquire_all(["c", "b", "a"], options().no_wait())).await;
        let error = refused.expect_err("one is held");
        assert!(error.is_busy());
        assert_eq!(error.key().expect("names it").as_str(), "b");
        assert!(is_free(&locks, "a").await && is_free(&locks, "c").await);
    }

    #[tokio::test(start_paused = true)]
    async fn the_wait_covers_all_keys_together() {
        let locks = LockManager::in_memory();
        let _a = hold(&locks, "a", SECOND * 3).await;
        let _b = hold(&locks, "b", SECOND * 6).await;
        let start = Instant::now();
        let error = locks
            .acquire_all(["a", "b"], options().wait(SECOND * 4))
            .await;
        let error = error.expect_err("one is held for longer");
        assert_eq!(start.elapsed().as_secs(), 4);
        assert!(error.is_busy());
        assert_eq!(error.key().expect("names it").as_str(), "b");
        assert!(is_free(&locks, "a").await);
        let guard = locks
            .acquire_all(["a", "b"], options().wait(SECOND * 4))
            .await;
        drop(guard.expect("free soon enough"));
        assert_eq!(start.elapsed().as_secs(), 6);
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_that_ends_between_two_keys_tries_the_second_once() {
        let locks = LockManager::in_memory();
        let a = hold(&locks, "a", SECOND).await;
        let mut waiting = Box::pin(locks.acquire_all(["a", "b"], options().wait(SECOND * 2)));
        assert!(timeout(Duration::ZERO, &mut waiting).await.is_err());
        // The acquire is granted the first key in time, and is not polled until its time is over.
        a.await.expect("no panic");
        advance(SECOND * 2).await;
        drop(waiting.await.expect("the other one is free"));
    }

    #[tokio::test(start_paused = true)]
    async fn an_acquire_that_is_dropped_between_two_keys_releases_the_first() {
        let locks = LockManager::in_memory();
        let _b = hold(&locks, "b", SECOND * 60).await;
        let mut waiting = Box::pin(locks.acquire_all(["a", "b", "c"], options().wait_forever()));
        assert!(timeout(SECOND, &mut waiting).await.is_err());
        assert!(!is_free(&locks, "a").await);
        drop(waiting);
        assert!(is_free(&locks, "a").await);
        assert_eq!(
            locks
                .inspect("b")
                .await
                .expect("works")
                .expect("held")
                .waiters,
            0
        );
    }

    #[tokio::test(start_paused = true)]
    async fn keys_are_renewed_while_the_task_waits_for_the_others() {
        for renewed in [options(), options().without_renewal()] {
            let locks = LockManager::in_memory();
            let _b = hold(&locks, "b", SECOND * 60).await;
            let waiting = wait_for(&locks, &["b", "a"], renewed);
            yield_now().await;
            for _ in 0..59 {
                assert!(!is_free(&locks, "a").await);
                sleep(SECOND).await;
            }
            let guard = waiting.await.expect("no panic").expect("free in the end");
            guard.lease().verify().await.expect("all of them");
            assert!(guard.lease().remaining() > SECOND * 5);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_is_lost_while_the_task_waits_for_another_is_taken_again() {
        let locks = LockManager::in_memory();
        let _b = hold(&locks, "b", SECOND * 60).await;
        let waiting = wait_for(&locks, &["a", "b"], options());
        sleep(SECOND).await;
        locks.force_release("a").await.expect("works");
        let _a = hold(&locks, "a", SECOND * 70).await;
        let start = Instant::now();
        let guard = waiting.await.expect("no panic").expect("free in the end");
        assert_eq!(start.elapsed().as_secs(), 70);
        guard.lease().verify().await.expect("all of them");
    }

    #[tokio::test(start_paused = true)]
    async fn an_invalid_list_is_refused_before_a_key_is_taken() {
        let locks = LockManager::in_memory();
        let too_long = "z".repeat(513);
        let many = |count: u32| (0..count).map(|number| format!("k{number}"));
        let refused = [
            locks.acquire_all([""; 0], options()).await,
            locks.acquire_all(["a", ""], options()).await,
            locks.acquire_all(["a", &too_long], options()).await,
            locks.acquire_all(many(65), options()).await,
            locks
                .acquire_all(["a", "b"], LockOptions::new(Duration::ZERO))
                .await,
        ];
        for refused in refused {
            assert_fails!(refused, LockError::Invalid { .. });
        }
        assert!(is_free(&locks, "a").await && is_free(&locks, "k0").await);
        let most = locks.acquire_all(many(64).chain(many(64)), options()).await;
        assert_eq!(most.expect("free").lease().fencing_tokens().len(), 64);
    }

    #[tokio::test(start_paused = true)]
    async fn each_key_counts_towards_the_caps_of_a_manager() {
        let locks = LockManager::builder().max_leases(2).in_memory();
        let refused = locks.acquire_all(["a", "b", "c"], options()).await;
        assert_fails!(refused, LockError::Unavailable { .. });
        assert!(is_free(&locks, "a").await);
        let two = locks.acquire_all(["a", "b"], options()).await;
        two.expect("as many as are allowed").release_held().await;
    }
}

mod losing {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_lease_reports_the_loss_of_any_key() {
        let locks = LockManager::in_memory();
        let guard = locks
            .acquire_all(["a", "b"], options())
            .await
            .expect("free");
        let lease = guard.lease();
        locks.force_release("b").await.expect("works");
        assert_eq!(lease.lost().await, LeaseLost::TakenAway);
        assert!(lease.is_lost());
        assert_eq!(lease.remaining(), Duration::ZERO);
        let lost = LeaseLost::TakenAway;
        assert!(is_lost(&lease.ensure(Duration::ZERO), "b", lost));
        assert!(is_lost(&lease.verify().await, "b", lost));
        assert!(is_lost(&guard.release().await, "b", lost));
        assert!(is_free(&locks, "a").await);
    }

    /// As with one key, the guard of a lost lease blocks no other task.
    #[tokio::test(start_paused = true)]
    async fn the_other_keys_of_a_lost_lease_are_not_renewed() {
        let locks = LockManager::in_memory();
        let guard = locks
            .acquire_all(["a", "b"], options())
            .await
            .expect("free");
        locks.force_release("b").await.expect("works");
        // No task watches the lease, so its renewal finds the loss.
        sleep(SECOND * 15).await;
        let next = locks.acquire("a", options().no_wait()).await;
        let next = next.expect("no longer renewed");
        drop(guard);
        yield_now().await;
        next.lease()
            .verify()
            .await
            .expect("the old guard left it alone");
    }

    #[tokio::test(start_paused = true)]
    async fn verifying_checks_every_key() {
        for taken_away in ["a", "b", "c"] {
            let locks = LockManager::in_memory();
            let guard = locks.acquire_all(["a", "b", "c"], options()).await;
            let lease = guard.as_ref().expect("free").lease();
            lease.verify().await.expect("held");
            locks.force_release(taken_away).await.expect("works");
            assert!(!lease.is_lost(), "no reply has reported the loss yet");
            let verified = lease.verify().await;
            assert!(
                is_lost(&verified, taken_away, LeaseLost::TakenAway),
                "{verified:?}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_release_names_the_key_that_was_taken_away() {
        let locks = LockManager::in_memory();
        let guard = locks
            .acquire_all(["a", "b", "c"], options())
            .await
            .expect("free");
        locks.force_release("b").await.expect("works");
        let released = guard.release().await;
        assert!(
            is_lost(&released, "b", LeaseLost::TakenAway),
            "{released:?}"
        );
        assert!(is_free(&locks, "a").await && is_free(&locks, "c").await);
    }
}

mod times {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_shortest_remaining_time_of_a_key_is_that_of_the_lease() {
        let locks = LockManager::in_memory();
        let _b = hold(&locks, "b", SECOND).await;
        let guard = locks
            .acquire_all(["b", "a"], options())
            .await
            .expect("free soon");
        // The first key was taken a second ago: 10 s minus 1 % and 2 ms, and that second.
        assert_eq!(guard.lease().remaining(), Duration::from_millis(8_898));
        let (enough, too_long) = (SECOND * 5, SECOND * 6);
        guard.lease().ensure(enough).expect("half of the ttl");
        let refused = guard.lease().ensure(too_long);
        assert_fails!(refused, LockError::Invalid { .. });
    }

    #[tokio::test(start_paused = true)]
    async fn without_renewal_the_ttl_of_each_key_starts_when_the_last_one_is_taken() {
        let locks = LockManager::in_memory();
        let start = Instant::now();
        let _b = hold(&locks, "b", SECOND * 3).await;
        let guard = locks
            .acquire_all(["a", "b"], options().without_renewal())
            .await;
        let lease = guard.as_ref().expect("free soon").lease();
        assert_eq!(start.elapsed(), SECOND * 3);
        assert_eq!(lease.remaining(), Duration::from_millis(9_898));
        let refused = lease.ensure(Duration::from_millis(9_899));
        assert_fails!(refused, LockError::Unavailable { .. });
        lease.lost().await;
        assert_eq!(start.elapsed().as_millis(), 12_898);
    }

    /// Another task of the process holds one of the shares throughout.
    #[tokio::test(start_paused = true)]
    async fn without_renewal_shared_keys_end_with_their_ttl_while_another_task_holds_one() {
        let locks = LockManager::in_memory();
        let start = Instant::now();
        let shared = options().shared();
        let kept = locks.acquire_free("a", shared.clone()).await;
        let _c = hold(&locks, "c", SECOND * 3).await;
        let keys = ["a", "b", "c"];
        let guard = locks.acquire_all(keys, shared.without_renewal()).await;
        let lease = guard.as_ref().expect("free soon").lease();
        assert_eq!(start.elapsed(), SECOND * 3);
        assert_eq!(lease.remaining(), Duration::from_millis(9_898));
        let reason = in_time(lease.lost()).await;
        assert_eq!(reason, LeaseLost::Expired);
        assert_eq!(start.elapsed().as_millis(), 12_898);
        sleep(SECOND * 20).await;
        kept.lease().verify().await.expect("it is renewed");
    }

    #[tokio::test(start_paused = true)]
    async fn max_hold_starts_when_all_keys_are_held() {
        let locks = LockManager::in_memory();
        let _b = hold(&locks, "b", SECOND * 8).await;
        let start = Instant::now();
        let running = locks.run_all(["a", "b"], options().max_hold(SECOND * 5), |_| pending());
        let hung = in_time(running).await;
        let Err(LockError::Lost { reason, .. }) = &hung as &Result<(), _> else {
            panic!("not lost: {hung:?}");
        };
        assert_eq!(
            (*reason, start.elapsed().as_secs()),
            (LeaseLost::MaxHold, 13)
        );
        assert!(is_free(&locks, "a").await && is_free(&locks, "b").await);
    }

    #[tokio::test(start_paused = true)]
    async fn min_hold_starts_for_each_key_when_all_are_held() {
        let locks = LockManager::in_memory();
        let _b = hold(&locks, "b", SECOND * 8).await;
        let body = |_| async {};
        let ran = locks.run_all(["a", "b"], options().min_hold(SECOND * 5), body);
        ran.await.expect("free soon");
        for _ in 0..5 {
            assert!(!is_free(&locks, "a").await && !is_free(&locks, "b").await);
            sleep(SECOND).await;
        }
        assert!(is_free(&locks, "a").await && is_free(&locks, "b").await);
    }

    #[tokio::test(start_paused = true)]
    async fn min_hold_keeps_no_key_of_a_list_that_was_refused() {
        let locks = LockManager::in_memory();
        let _b = hold(&locks, "b", SECOND * 60).await;
        let options = options().min_hold(SECOND * 3600).wait(SECOND);
        let busy = in_time(locks.acquire_all(["a", "b"], options)).await;
        assert!(busy.expect_err("one is held").is_busy());
        assert!(is_free(&locks, "a").await);
    }
}

mod reentry {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_body_takes_any_of_its_keys_again() {
        let locks = LockManager::in_memory();
        let inner = locks.clone();
        let body = |lease: lock_core::Lease| async move {
            let outer: std::collections::HashMap<_, _> =
                lease.fencing_tokens().into_iter().collect();
            for keys in [&["a"][..], &["b"], &["a", "b"], &["b", "a"], &["b", "b"]] {
                let again = inner
                    .acquire_all(keys.iter().copied(), options().no_wait())
                    .await;
                let again = again.expect("held by this task");
                assert_eq!(again.key().as_str(), keys[0]);
                for (key, token) in again.lease().fencing_tokens() {
                    assert_eq!(token, outer[&key]);
                }
                again
                    .release()
                    .await
                    .expect("it releases its own share alone");
                assert!(!lease.is_lost());
            }
            let again = inner.acquire("b", options().no_wait()).await;
            drop(again.expect("held by this task"));
            let keys = inner.run_all(["b", "a"], options(), async |lease| {
                assert_eq!(current_lease().expect("in a body").key().as_str(), "b");
                lease.fencing_tokens()
            });
            let keys = keys.await.expect("held by this task");
            assert!(keys.iter().all(|(key, token)| outer[key] == *token));
            assert_held!("a");
            assert_held!("b");
            lease.verify().await.expect("still held");
        };
        locks
            .run_all(["a", "b"], options(), body)
            .await
            .expect("free");
        assert!(is_free(&locks, "a").await && is_free(&locks, "b").await);
    }

    #[tokio::test(start_paused = true)]
    async fn keys_of_two_nested_bodies_are_taken_again_together() {
        let locks = LockManager::in_memory();
        let (middle, inner) = (locks.clone(), locks.clone());
        let body = |_| async move {
            let body = |_| async move {
                let again = inner.acquire_all(["a", "b"], options().no_wait()).await;
                let lease = again.as_ref().expect("both are held by this task").lease();
                assert_held!("a");
                assert_held!("b");
                inner.force_release("b").await.expect("works");
                assert_eq!(in_time(lease.lost()).await, LeaseLost::TakenAway);
                let released = again.expect("held").release().await;
                assert!(
                    is_lost(&released, "b", LeaseLost::TakenAway),
                    "{released:?}"
                );
                current_lease().expect("in a body")
            };
            let lease = middle
                .run("a", options(), body)
                .await
                .expect("another lock");
            assert_eq!(lease.key().as_str(), "a");
        };
        let options = options().on_lost(OnLost::Continue);
        Box::pin(locks.run("b", options, body))
            .await
            .expect("the body ran to its end");
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_share_of_each_key_releases_it() {
        let locks = LockManager::in_memory();
        let inner = locks.clone();
        let body = |_| async move { inner.acquire("b", options()).await };
        let share = locks
            .run_all(["a", "b"], options(), body)
            .await
            .expect("free");
        let share = share.expect("held by this task");
        assert!(is_free(&locks, "a").await && !is_free(&locks, "b").await);
        assert!(!share.lease().is_lost());
        share.release_held().await;
        assert!(is_free(&locks, "b").await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_a_body_holds_only_in_part_is_refused() {
        let locks = LockManager::in_memory();
        let inner = locks.clone();
        let body = |lease: lock_core::Lease| async move {
            for keys in [["b", "c"], ["c", "b"], ["a", "b"]] {
                let refused = inner.acquire_all(keys, options()).await;
                let Err(LockError::Invalid { key, .. }) = &refused else {
                    panic!("not refused: {refused:?}");
                };
                let missing = keys
                    .into_iter()
                    .find(|key| *key != "b")
                    .expect("one of two");
                assert_eq!(key.as_ref().expect("names it").as_str(), missing);
            }
            assert!(is_free(&inner, "a").await && is_free(&inner, "c").await);
            let others = inner.acquire_all(["a", "c"], options()).await;
            others
                .expect("like a single other key")
                .release_held()
                .await;
            assert!(!lease.is_lost());
        };
        locks.run("b", options(), body).await.expect("free");
    }
}
