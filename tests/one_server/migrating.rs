//! The claims of `docs/migrating.md` about other libraries, tested with the libraries that can be linked, and otherwise with the
//! commands that they send. `neighbours.rs` runs the libraries of other languages as processes.

use distributed_lock_core::traits::{DistributedLock as _, LockHandle as _, LockProvider as _};
use lock_core::{LeaseLost, LockManager, LockOptions};
use lock_tests::{AcquireFree as _, RedisServer, ReleaseHeld as _, SECOND, key_prefix_in_docs};

fn options() -> LockOptions {
    LockOptions::new(SECOND * 60).no_wait()
}

/// Connects a manager with the prefix that the page names.
async fn locks_while_migrating_from(server: &RedisServer, library: &str) -> LockManager {
    manager(server, key_prefix_in_docs(library)).await
}

async fn manager(server: &RedisServer, prefix: &str) -> LockManager {
    let builder = LockManager::builder().key_prefix(prefix);
    builder
        .connect(&server.url())
        .await
        .expect("the server is up")
}

async fn is_free(locks: &LockManager, key: &str) -> bool {
    let tried = locks.try_acquire(key, options()).await;
    tried.expect("a reply").is_some()
}

#[tokio::test]
async fn rslock_and_ours_exclude_each_other() {
    let server = RedisServer::start();
    let mut theirs = rslock::LockManager::new(vec![server.url()]);
    theirs.set_retry(1, SECOND);
    let ours = locks_while_migrating_from(&server, "rslock (Rust)").await;
    let held = theirs.lock("orders", SECOND * 60).await.expect("free");
    assert!(!is_free(&ours, "orders").await);
    theirs.unlock(&held).await;
    let guard = ours.acquire("orders", options()).await.expect("released");
    assert!(theirs.lock("orders", SECOND * 60).await.is_err());
    guard
        .lease()
        .verify()
        .await
        .expect("a try takes no lock away");
    guard.release_held().await;
    theirs.lock("orders", SECOND * 60).await.expect("released");
}

#[tokio::test]
async fn a_dropped_guard_of_rslock_leaves_its_lock_and_ours_releases_it() {
    let server = RedisServer::start();
    let mut theirs = rslock::LockManager::new(vec![server.url()]);
    theirs.set_retry(1, SECOND);
    let ours = locks_while_migrating_from(&server, "rslock (Rust)").await;
    drop(ours.acquire_free("orders", options()).await);
    lock_tests::eventually(SECOND * 10, "the drop has released it", async || {
        server.get("orders").is_none()
    })
    .await;
    drop(theirs.acquire("orders", SECOND * 60).await.expect("free"));
    assert!(!is_free(&ours, "orders").await);
    assert!(server.pttl("orders").is_some_and(|left| left > SECOND * 50));
}

#[tokio::test]
async fn distributed_lock_redis_and_ours_exclude_each_other() {
    let server = RedisServer::start();
    let provider = distributed_lock_redis::RedisLockProvider::builder().url(server.url());
    let theirs = provider
        .build()
        .await
        .expect("the server is up")
        .create_lock("orders");
    let ours = locks_while_migrating_from(&server, "distributed-lock-redis (Rust)").await;
    let held = theirs.try_acquire().await.expect("a reply").expect("free");
    assert!(!is_free(&ours, "orders").await);
    held.release().await.expect("held");
    let guard = ours.acquire("orders", options()).await.expect("released");
    assert!(theirs.try_acquire().await.expect("a reply").is_none());
    guard
        .lease()
        .verify()
        .await
        .expect("a try takes no lock away");
    guard.release_held().await;
    assert!(theirs.try_acquire().await.expect("a reply").is_some());
}

/// Redisson counts how often a thread holds a lock, in a field of a hash that is named after the thread.
mod redisson {
    use lock_core::LockError;
    use lock_tests::{AcquireFree as _, ReleaseHeld as _, assert_fails};

    use super::{RedisServer, manager, options};

    const THREAD: &str = "a-client-of-redisson:1";

    /// Sends the commands by which Redisson acquires a lock, which it has in a script. Returns the server's error if the key is
    /// not a hash.
    fn take(server: &RedisServer) -> redis::RedisResult<()> {
        server.try_cli(&["HEXISTS", "orders", THREAD])?;
        server.try_cli(&["HINCRBY", "orders", THREAD, "1"])?;
        server.try_cli(&["PEXPIRE", "orders", "30000"])?;
        Ok(())
    }

    #[tokio::test]
    async fn its_lock_is_invalid_for_ours_and_left_alone() {
        let server = RedisServer::start();
        let ours = manager(&server, "").await;
        take(&server).expect("free");
        let refused = ours.acquire("orders", options()).await;
        assert_fails!(refused, LockError::Invalid { .. });
        let refused = ours.force_release("orders").await;
        assert_fails!(refused, LockError::Invalid { .. });
        let left = server.cli(&["HGET", "orders", THREAD]);
        assert_eq!(redis::from_redis_value::<u32>(left).expect("a number"), 1);
    }

    #[tokio::test]
    async fn our_lock_is_an_error_for_it_and_stays() {
        let server = RedisServer::start();
        let ours = manager(&server, "").await;
        let guard = ours.acquire_free("orders", options()).await;
        let error = take(&server).expect_err("a string");
        assert!(error.to_string().contains("WRONGTYPE"), "{error}");
        guard.release_held().await;
        take(&server).expect("free");
        let held = server.cli(&["HGET", "orders", THREAD]);
        assert_eq!(redis::from_redis_value::<u32>(held).expect("a number"), 1);
    }
}

/// `ShedLock` sets a string. It ends or shortens its lock without checking the owner, unless `safeUpdate` is set.
mod shedlock {
    use lock_tests::{AcquireFree as _, ReleaseHeld as _};

    use super::{
        LeaseLost, LockManager, RedisServer, is_free, locks_while_migrating_from, options,
    };

    const KEY: &str = "job-lock:default:nightly";
    const VALUE: &str = "ADDED:2026-11-20T03:00:00.000Z@host";

    async fn start() -> (RedisServer, LockManager) {
        let server = RedisServer::start();
        let ours = locks_while_migrating_from(&server, "ShedLock (Java)").await;
        (server, ours)
    }

    #[tokio::test]
    async fn its_lock_and_ours_exclude_each_other() {
        let (server, ours) = start().await;
        server.cli(&["SET", KEY, VALUE, "NX", "PX", "60000"]);
        assert!(!is_free(&ours, "nightly").await);
        server.cli(&["DEL", KEY]);
        let guard = ours.acquire_free("nightly", options()).await;
        let refused = server.cli(&["SET", KEY, VALUE, "NX", "PX", "60000"]);
        assert_eq!(refused, redis::Value::Nil);
        guard.release_held().await;
    }

    #[tokio::test]
    async fn a_late_end_of_its_job_takes_our_lock_away() {
        for end in [
            &["DEL", KEY][..],
            &["SET", KEY, VALUE, "XX", "PX", "5000"][..],
        ] {
            let (server, ours) = start().await;
            let guard = ours
                .acquire("nightly", options())
                .await
                .expect("theirs has expired");
            server.cli(end);
            guard.lease().verify().await.expect_err("taken away");
            assert_eq!(guard.lease().lost().await, LeaseLost::TakenAway, "{end:?}");
        }
    }

    #[tokio::test]
    async fn with_safe_update_a_late_end_of_its_job_does_not_affect_our_lock() {
        let (server, ours) = start().await;
        let guard = ours
            .acquire("nightly", options())
            .await
            .expect("theirs has expired");
        let compare = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0";
        server.cli(&["EVAL", compare, "1", KEY, VALUE]);
        assert!(server.get(KEY).is_some());
        guard.release().await.expect("held all the time");
    }
}
