//! Locks on threads without a runtime, and in a runtime without timers and sockets.

use std::{
    cell::RefCell,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use futures_executor::block_on;
use futures_util::future::join;
use lock_core::{
    FencingToken, LockError, LockGuard, LockManager, LockOptions, current_lease, distributed_lock,
};
use lock_tests::{
    HANG, Mode, RedisServer, SECOND, assert_fails, connect, eventually, eventually_blocking,
};
use tokio::runtime::{Builder, Handle};

const THREADS: usize = 4;
const ROUNDS: usize = 25;
const MODES: [Mode; 3] = [Mode::Exclusive, Mode::Shared, Mode::Permits(2)];

/// Options with a ttl much longer than each wait of a test: a lock that is free was released, and did not expire.
fn options() -> LockOptions {
    LockOptions::new(HANG * 5).wait(HANG)
}

/// The manager outlives the runtime in which it connects.
fn connected(url: &str) -> LockManager {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(connect(url))
}

fn most_at_a_time(mode: Mode) -> usize {
    match mode {
        Mode::Exclusive => 1,
        Mode::Shared => THREADS,
        Mode::Permits(permits) => permits.into(),
    }
}

fn acquire(locks: &LockManager, mode: Mode) -> LockGuard {
    let acquired = block_on(locks.acquire("k", mode.of(options())));
    acquired.unwrap_or_else(|error| panic!("{mode:?}: {error:?}"))
}

/// Half of the guards are released, half are dropped.
fn hold(locks: &LockManager, mode: Mode, inside: &AtomicUsize, round: usize) {
    let guard = acquire(locks, mode);
    let holders = inside.fetch_add(1, Ordering::SeqCst) + 1;
    assert!(
        holders <= most_at_a_time(mode),
        "{holders} holders, {mode:?}"
    );
    thread::yield_now();
    inside.fetch_sub(1, Ordering::SeqCst);
    if round.is_multiple_of(2) {
        block_on(guard.release()).expect("held");
    } else {
        drop(guard);
    }
}

fn in_threads(threads: impl Iterator<Item = Box<dyn FnOnce() + Send>>) {
    let threads: Vec<_> = threads.map(thread::spawn).collect();
    for thread in threads {
        thread.join().expect("no panic");
    }
}

/// Lets threads contend: one uses the second manager, which acts as a second process, and the others the first.
fn contend(first: &LockManager, second: &LockManager, mode: Mode) {
    let inside = Arc::new(AtomicUsize::new(0));
    in_threads((0..THREADS).map(|number| {
        let locks = if number == 0 { second } else { first }.clone();
        let inside = inside.clone();
        let work = move || (0..ROUNDS).for_each(|round| hold(&locks, mode, &inside, round));
        Box::new(work) as Box<dyn FnOnce() + Send>
    }));
}

fn is_free_soon(locks: &LockManager) {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        eventually(HANG, "the lock is free", async || {
            locks.inspect("k").await.expect("a reply").is_none()
        })
        .await;
    });
}

fn plain_threads_contend(mode: Mode) {
    let server = RedisServer::start();
    let (first, second) = (connected(&server.url()), connected(&server.url()));
    contend(&first, &second, mode);
    is_free_soon(&first);
}

#[test]
fn plain_threads_exclude_each_other() {
    plain_threads_contend(Mode::Exclusive);
}

#[test]
fn plain_threads_share_a_key() {
    plain_threads_contend(Mode::Shared);
}

#[test]
fn plain_threads_get_permits() {
    plain_threads_contend(Mode::Permits(2));
}

#[test]
fn plain_threads_lock_on_independent_servers() {
    let servers = [(); 3].map(|()| RedisServer::start());
    let urls = servers.each_ref().map(RedisServer::url);
    let runtime = Builder::new_current_thread().enable_all().build();
    let builder = LockManager::builder().quarantine(Duration::ZERO);
    // By default, the ttl may be at most a minute.
    let connecting = builder.max_ttl(HANG * 5).redlock(urls);
    let locks = runtime.expect("a runtime").block_on(connecting);
    let locks = locks.expect("they are up");
    contend(&locks, &locks, Mode::Exclusive);
    is_free_soon(&locks);
}

/// As under smol: no call from `connect` to `shutdown` needs a tokio runtime, nor do waits and renewals.
#[test]
fn another_executor_suffices_from_connect_to_shutdown() {
    #[distributed_lock(key = "k", wait = "30s", locks = locks)]
    async fn annotated(locks: &LockManager) -> Result<FencingToken, LockError> {
        Ok(current_lease().expect("inside").fencing_token())
    }

    assert!(Handle::try_current().is_err());
    let server = RedisServer::start();
    block_on(async {
        let locks = LockManager::connect(&server.url()).await.expect("up");
        let other = LockManager::connect(&server.url()).await.expect("up");
        let short = LockOptions::new(SECOND * 5).wait(HANG);
        let body = locks.run("k", short, async |lease| {
            let busy = other.acquire("k", options().wait(SECOND * 6)).await;
            assert!(busy.expect_err("held").is_busy(), "beyond its ttl");
            lease.fencing_token()
        });
        let first = body.await.expect("renewed");
        let guard = locks.acquire("k", options()).await.expect("free");
        let (next, released) = join(annotated(&other), guard.release()).await;
        released.expect("held");
        assert!(next.expect("its turn") > first);
        locks.shutdown(HANG).await;
        other.shutdown(HANG).await;
    });
    assert!(server.keys("lock:*").is_empty(), "released");
}

/// Thread-local values are dropped when the thread ends, and by then it cannot enter a runtime.
#[test]
fn a_guard_that_is_dropped_with_its_thread_is_released() {
    thread_local! {
        static KEPT: RefCell<Option<LockGuard>> = const { RefCell::new(None) };
    }
    for mode in MODES {
        let server = RedisServer::start();
        let locks = connected(&server.url());
        in_threads((0..THREADS).map(|_| {
            let locks = locks.clone();
            let work = move || {
                KEPT.with(|_| ());
                let guard = acquire(&locks, mode);
                KEPT.set(Some(guard));
            };
            Box::new(work) as Box<dyn FnOnce() + Send>
        }));
        is_free_soon(&locks);
    }
}

/// While the guard is dropped, a waiter of the same process gets the lock, and the next tokens are prefetched. A shared lock is not
/// handed over, since a task that wants to share it does not wait.
#[test]
fn a_guard_that_is_dropped_on_a_plain_thread_hands_the_lock_over() {
    for mode in [Mode::Exclusive, Mode::Permits(2)] {
        let server = RedisServer::start();
        let locks = connected(&server.url());
        // The server knows the scripts afterwards.
        drop(acquire(&locks, mode));
        is_free_soon(&locks);
        let guards: Vec<_> = (0..most_at_a_time(mode))
            .map(|_| acquire(&locks, mode))
            .collect();
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        let runtime = runtime.expect("a runtime");
        let waiters: Vec<_> = (0..THREADS)
            .map(|_| {
                let locks = locks.clone();
                runtime.spawn(async move {
                    let guard = locks.acquire("k", mode.of(options())).await;
                    guard.expect("its turn").release().await.expect("held");
                })
            })
            .collect();
        eventually_blocking(HANG, "all wait", || {
            let seen = block_on(locks.inspect("k")).expect("a reply");
            seen.is_some_and(|info| info.waiters == THREADS)
        });
        in_threads(guards.into_iter().map(|guard| {
            let work = move || drop(guard);
            Box::new(work) as Box<dyn FnOnce() + Send>
        }));
        for waiter in waiters {
            runtime.block_on(waiter).expect("no panic");
        }
        is_free_soon(&locks);
    }
}

/// The future is polled in a runtime that has neither timers nor sockets.
#[test]
fn a_runtime_without_timers_and_sockets_suffices() {
    for mode in MODES {
        let server = RedisServer::start();
        let (locks, other) = (connected(&server.url()), connected(&server.url()));
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        let guard = acquire(&other, mode);
        let waits = options().wait(Duration::from_millis(300));
        let refused = runtime.block_on(locks.acquire("k", waits));
        match mode {
            Mode::Exclusive | Mode::Shared => assert_fails!(refused, LockError::Busy { .. }),
            // They and other modes exclude each other.
            Mode::Permits(_) => assert_fails!(refused, LockError::Invalid { .. }),
        }
        drop(guard);
        let guard = runtime.block_on(locks.acquire("k", mode.of(options())));
        runtime
            .block_on(guard.expect("free").release())
            .expect("held");
        is_free_soon(&locks);
    }
}
