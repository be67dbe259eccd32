//! Releases in the background: the call returns when the release is queued for sending, and nothing else changes.

use std::{
    fmt,
    pin::pin,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use lock_core::{LockError, LockManager, LockManagerBuilder, LockOptions, distributed_lock};
use lock_tests::{
    AcquireFree as _, After, Direction, HANG, Proxy, RedisServer, Scope, Which, eventually,
    run_in_a_row,
};
use tokio::time::timeout;

const KEYS: [&str; 3] = ["a", "b", "c"];

/// The longest time that the drop of the last manager may block.
const LAST_WAIT: Duration = Duration::from_millis(100);

/// Options with a ttl so long that no lock expires while a test runs.
fn options() -> LockOptions {
    LockOptions::new(HANG * 10).wait(HANG)
}

/// A builder with a time-out so long that no call gives up its wait for a reply while a test runs.
fn patient() -> LockManagerBuilder {
    LockManager::builder().command_timeout(HANG)
}

/// A server behind a proxy.
struct Way {
    server: RedisServer,
    proxy: Proxy,
    loses_replies: AtomicBool,
}

impl Way {
    /// Returns a way, and a manager that releases in the background.
    async fn in_the_background() -> (Self, LockManager) {
        Self::of(patient().release_in_background()).await
    }

    async fn of(builder: LockManagerBuilder) -> (Self, LockManager) {
        let server = RedisServer::start();
        let proxy = Proxy::start(server.port());
        let locks = builder.connect(&proxy.url()).await.expect("it is up");
        let way = Self {
            server,
            proxy,
            loses_replies: AtomicBool::new(false),
        };
        (way, locks)
    }

    fn held(&self) -> usize {
        self.server.keys("lock:*").len()
    }

    async fn becomes_free(&self) {
        eventually(HANG, "the lock is free", async || self.held() == 0).await;
    }

    /// Keeps everything from the server from now on.
    fn swallow(&self) {
        self.proxy.black_hole(Scope::Existing);
    }

    /// Loses all replies from now on; the server still gets the requests.
    fn lose_replies(&self) {
        self.proxy
            .lose(Direction::Replies, Which::every(), After::Silence);
        self.loses_replies.store(true, Ordering::SeqCst);
    }

    fn pass(&self) {
        self.proxy.pass();
        self.loses_replies.store(false, Ordering::SeqCst);
    }

    /// Checks that a call returns although its body has all later requests or replies lost. A call that waits for a reply
    /// would give up later.
    async fn does_not_hold_up<T>(&self, call: impl Future<Output = Result<T, LockError>>) {
        let ended = timeout(HANG / 2, call).await;
        assert!(
            ended.expect("it waits for no answer").is_ok(),
            "it was free"
        );
    }

    /// Checks that a call with a body that has the replies lost does not return before its release was answered.
    async fn holds_up<T: fmt::Debug>(&self, call: impl Future<Output = Result<T, LockError>>) {
        let mut call = pin!(call);
        tokio::select! {
            biased;
            ended = &mut call => panic!("no reply has come: {ended:?}"),
            () = eventually(HANG, "the server has released", async || {
                self.loses_replies.load(Ordering::SeqCst) && self.held() == 0
            }) => {}
        }
        self.pass();
        call.await.expect("free");
    }
}

/// The test blocks the only thread of its runtime, so nothing there can send.
#[tokio::test]
async fn a_release_leaves_though_its_runtime_is_blocked_at_once() {
    let (way, locks) = Way::in_the_background().await;
    drop(locks.acquire_free("a", options()).await);
    way.becomes_free().await;
    for _ in 0..10 {
        locks
            .run("a", options(), async |_| {})
            .await
            .expect("it is free");
        let since = Instant::now();
        while way.held() > 0 {
            assert!(since.elapsed() < HANG, "the release has not left");
        }
    }
}

#[tokio::test]
async fn a_call_returns_before_the_server_has_its_release() {
    let (way, locks) = Way::in_the_background().await;
    let swallow = async |_| way.swallow();
    way.does_not_hold_up(locks.run("k", options(), swallow))
        .await;
    assert!(way.held() > 0, "no release came through");
    way.pass();
    way.becomes_free().await;
}

#[tokio::test]
async fn a_call_for_several_keys_returns_before_the_server_has_their_releases() {
    let (way, locks) = Way::in_the_background().await;
    let swallow = async |_| way.swallow();
    way.does_not_hold_up(locks.run_all(KEYS, options(), swallow))
        .await;
    assert_eq!(way.held(), KEYS.len());
    way.pass();
    way.becomes_free().await;
    for _ in 0..20 {
        let again = locks.run_all(KEYS, options().no_wait(), async |_| {});
        again.await.expect("each is sent behind its release");
    }
    way.becomes_free().await;
}

#[tokio::test]
async fn by_default_a_call_waits_for_the_reply() {
    let (way, locks) = Way::of(patient()).await;
    let lose = async |_| way.lose_replies();
    way.holds_up(locks.run("k", options(), lose)).await;
    let lose = async |_| way.lose_replies();
    way.holds_up(locks.run_all(KEYS, options(), lose)).await;
}

#[tokio::test]
async fn the_options_of_a_lock_go_before_the_managers_default() {
    let (way, locks) = Way::of(patient()).await;
    let swallow = async |_| way.swallow();
    let behind = options().release_in_background();
    way.does_not_hold_up(locks.run("k", behind, swallow)).await;
    assert!(way.held() > 0, "no release came through");
}

#[distributed_lock(key = "k", ttl = "10m", release = background, locks = locks)]
async fn behind(locks: &LockManager, body: impl FnOnce()) -> Result<(), LockError> {
    body();
    Ok(())
}

#[distributed_lock(key = "k", ttl = "10m", release = awaited, locks = locks)]
async fn awaited(locks: &LockManager, body: impl FnOnce()) -> Result<(), LockError> {
    body();
    Ok(())
}

#[distributed_lock(key = ["a", "b"], ttl = "10m", locks = locks)]
async fn as_the_manager_does(locks: &LockManager, body: impl FnOnce()) -> Result<(), LockError> {
    body();
    Ok(())
}

#[tokio::test]
async fn the_attribute_says_which_or_does_as_the_manager() {
    let (way, locks) = Way::of(patient()).await;
    let swallow = || way.swallow();
    way.does_not_hold_up(behind(&locks, swallow)).await;
    assert!(way.held() > 0, "no release came through");

    let (way, locks) = Way::in_the_background().await;
    let call = as_the_manager_does(&locks, || way.swallow());
    way.does_not_hold_up(call).await;
    assert_eq!(way.held(), 2, "the manager's default is the background");
    way.pass();
    way.becomes_free().await;
    let call = awaited(&locks, || way.lose_replies());
    way.holds_up(call).await;
}

#[tokio::test]
async fn a_guard_that_is_released_waits_for_the_reply() {
    let (way, locks) = Way::in_the_background().await;
    let guard = locks
        .acquire_free("k", options().release_in_background())
        .await;
    way.lose_replies();
    way.holds_up(guard.release()).await;
}

/// The releases take long, so that each try is sent while the release before it is in flight.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_try_of_the_process_finds_the_lock_free_and_has_a_larger_token() {
    let (way, locks) = Way::in_the_background().await;
    way.proxy
        .delay(Direction::Requests, Duration::from_millis(10));
    for _ in 0..3 {
        run_in_a_row(&locks, "k", 10).await;
        // From now on the server does not know the hashes of the scripts.
        way.server.cli(&["SCRIPT", "FLUSH"]);
    }
    // A connection breaks with a release in it.
    let reset = async |_| {
        way.proxy.clear_log();
        way.proxy
            .lose(Direction::Requests, Which::nth(1), After::Reset);
    };
    locks.run("k", options(), reset).await.expect("free");
    eventually!(HANG, "the release is lost" => !way.proxy.log().is_empty());
    run_in_a_row(&locks, "k", 3).await;
}

#[tokio::test]
async fn a_shutdown_waits_for_the_releases_in_the_background() {
    let (way, locks) = Way::in_the_background().await;
    let swallow = async |_| way.swallow();
    way.does_not_hold_up(locks.run_all(KEYS, options(), swallow))
        .await;
    let mut shutdown = pin!(locks.shutdown(HANG));
    tokio::select! {
        biased;
        () = &mut shutdown => panic!("no release came through"),
        () = eventually(HANG, "all are held", async || way.held() == KEYS.len()) => {}
    }
    way.pass();
    shutdown.await;
    assert_eq!(way.held(), 0, "released before the shutdown returns");
}

/// Without a runtime around it, as at the end of `main`.
#[test]
fn the_drop_of_the_last_manager_waits_for_the_releases_in_the_background() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    // Several rounds, so that a stall of the machine does not disturb one of them.
    for _ in 0..20 {
        let (way, locks) = runtime.block_on(Way::in_the_background());
        let slow = async |_| {
            way.proxy
                .delay(Direction::Requests, Duration::from_millis(20));
        };
        let run = locks.run("k", options(), slow);
        runtime.block_on(run).expect("free");
        let another = locks.clone();
        drop(locks);
        let started = Instant::now();
        drop(another);
        let took = started.elapsed();
        if way.held() == 0 {
            return;
        }
        assert!(took >= LAST_WAIT, "it did not wait: {took:?}");
    }
    panic!("never in time");
}

#[tokio::test]
async fn the_drop_of_the_last_manager_does_not_wait_for_a_server_that_does_not_answer() {
    let (way, locks) = Way::in_the_background().await;
    let swallow = async |_| way.swallow();
    way.does_not_hold_up(locks.run("k", options(), swallow))
        .await;
    let started = Instant::now();
    drop(locks);
    let took = started.elapsed();
    assert!(took >= LAST_WAIT && took < HANG / 2, "{took:?}");
    // The release goes on after the drop.
    way.pass();
    way.becomes_free().await;
}
