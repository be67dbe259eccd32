//! Releases in the background: the call returns as soon as the release is queued for sending.

use std::{
    fmt,
    pin::pin,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use lock_core::{LockError, LockManager, LockManagerBuilder, LockOptions};
use lock_tests::{
    AcquireFree as _, AfterLoss, Direction, Frames, HANG, Proxy, RedisServer, Scope, eventually,
    run_in_a_row,
};
use tokio::time::timeout;

const KEYS: [&str; 3] = ["a", "b", "c"];

/// The longest time that the drop of the last manager may block.
const LAST_WAIT: Duration = Duration::from_millis(100);

/// Options with a ttl so long that no lock expires during a test.
fn options() -> LockOptions {
    LockOptions::new(HANG * 10).wait(HANG)
}

/// A builder with a time-out so long that no call stops waiting for a reply during a test.
fn patient() -> LockManagerBuilder {
    LockManager::builder().command_timeout(HANG)
}

/// A server behind a proxy.
struct Proxied {
    server: RedisServer,
    proxy: Proxy,
    loses_replies: AtomicBool,
}

impl Proxied {
    /// Starts a server, a proxy, and a manager that releases in the background.
    async fn in_the_background() -> (Self, LockManager) {
        Self::of(patient().release_in_background()).await
    }

    async fn of(builder: LockManagerBuilder) -> (Self, LockManager) {
        let server = RedisServer::start();
        let proxy = Proxy::start(server.port());
        let locks = builder.connect(&proxy.url()).await.expect("it is up");
        let proxied = Self {
            server,
            proxy,
            loses_replies: AtomicBool::new(false),
        };
        (proxied, locks)
    }

    fn held(&self) -> usize {
        self.server.keys("lock:*").len()
    }

    async fn becomes_free(&self) {
        eventually(HANG, "the lock is free", async || self.held() == 0).await;
    }

    /// Swallows all requests and replies from now on.
    fn swallow(&self) {
        self.proxy.black_hole(Scope::Existing);
    }

    /// Loses all replies from now on, but no requests.
    fn lose_replies(&self) {
        self.proxy
            .lose(Direction::Replies, Frames::every(), AfterLoss::Silence);
        self.loses_replies.store(true, Ordering::SeqCst);
    }

    fn heal(&self) {
        self.proxy.heal();
        self.loses_replies.store(false, Ordering::SeqCst);
    }

    /// Checks that a call returns although its body swallows everything sent after it. A call that waits for a reply would
    /// fail later.
    async fn does_not_wait<T>(&self, call: impl Future<Output = Result<T, LockError>>) {
        let ended = timeout(HANG / 2, call).await;
        assert!(ended.expect("it waits for no reply").is_ok(), "it was free");
    }

    /// Checks that a call whose body loses the replies does not return before the reply to its release.
    async fn waits<T: fmt::Debug>(&self, call: impl Future<Output = Result<T, LockError>>) {
        let mut call = pin!(call);
        tokio::select! {
            biased;
            ended = &mut call => panic!("it returned without a reply: {ended:?}"),
            () = eventually(HANG, "the server has released", async || {
                self.loses_replies.load(Ordering::SeqCst) && self.held() == 0
            }) => {}
        }
        self.heal();
        call.await.expect("free");
    }
}

/// The test blocks the only thread of its runtime, so no task there can send.
#[tokio::test]
async fn a_release_is_sent_even_if_its_runtime_is_blocked_at_once() {
    let (proxied, locks) = Proxied::in_the_background().await;
    drop(locks.acquire_free("a", options()).await);
    proxied.becomes_free().await;
    for _ in 0..10 {
        locks
            .run("a", options(), async |_| {})
            .await
            .expect("it is free");
        let since = Instant::now();
        while proxied.held() > 0 {
            assert!(since.elapsed() < HANG, "the release was not sent");
        }
    }
}

#[tokio::test]
async fn a_call_returns_before_the_server_has_its_release() {
    let (proxied, locks) = Proxied::in_the_background().await;
    let swallow = async |_| proxied.swallow();
    proxied
        .does_not_wait(locks.run("k", options(), swallow))
        .await;
    assert!(proxied.held() > 0, "no release arrived");
    proxied.heal();
    proxied.becomes_free().await;
}

#[tokio::test]
async fn a_call_for_several_keys_returns_before_the_server_has_their_releases() {
    let (proxied, locks) = Proxied::in_the_background().await;
    let swallow = async |_| proxied.swallow();
    proxied
        .does_not_wait(locks.run_all(KEYS, options(), swallow))
        .await;
    assert_eq!(proxied.held(), KEYS.len());
    proxied.heal();
    proxied.becomes_free().await;
    for _ in 0..20 {
        let again = locks.run_all(KEYS, options().no_wait(), async |_| {});
        again
            .await
            .expect("each is sent after the release of its key");
    }
    proxied.becomes_free().await;
}

#[tokio::test]
async fn by_default_a_call_waits_for_the_reply() {
    let (proxied, locks) = Proxied::of(patient()).await;
    let lose = async |_| proxied.lose_replies();
    proxied.waits(locks.run("k", options(), lose)).await;
    let lose = async |_| proxied.lose_replies();
    proxied.waits(locks.run_all(KEYS, options(), lose)).await;
}

#[tokio::test]
async fn the_options_of_a_lock_precede_the_managers_default() {
    let (proxied, locks) = Proxied::of(patient()).await;
    let swallow = async |_| proxied.swallow();
    let background = options().release_in_background();
    proxied
        .does_not_wait(locks.run("k", background, swallow))
        .await;
    assert!(proxied.held() > 0, "no release arrived");
}

#[tokio::test]
async fn releasing_a_guard_waits_for_the_reply() {
    let (proxied, locks) = Proxied::in_the_background().await;
    let guard = locks
        .acquire_free("k", options().release_in_background())
        .await;
    proxied.lose_replies();
    proxied.waits(guard.release()).await;
}

/// Releases take long, so each try is sent while the release before it is in flight.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_try_of_the_process_finds_the_lock_free_and_has_a_larger_token() {
    let (proxied, locks) = Proxied::in_the_background().await;
    proxied
        .proxy
        .delay(Direction::Requests, Duration::from_millis(10));
    for _ in 0..3 {
        run_in_a_row(&locks, "k", 10).await;
        // Now the server does not know the hashes of the scripts.
        proxied.server.cli(&["SCRIPT", "FLUSH"]);
    }
    // A connection breaks with a release in flight.
    let reset = async |_| {
        proxied.proxy.clear_log();
        proxied
            .proxy
            .lose(Direction::Requests, Frames::nth(1), AfterLoss::Reset);
    };
    locks.run("k", options(), reset).await.expect("free");
    eventually!(HANG, "the release is lost" => !proxied.proxy.log().is_empty());
    run_in_a_row(&locks, "k", 3).await;
}

#[tokio::test]
async fn a_shutdown_waits_for_the_releases_in_the_background() {
    let (proxied, locks) = Proxied::in_the_background().await;
    let swallow = async |_| proxied.swallow();
    proxied
        .does_not_wait(locks.run_all(KEYS, options(), swallow))
        .await;
    let mut shutdown = pin!(locks.shutdown(HANG));
    tokio::select! {
        biased;
        () = &mut shutdown => panic!("no release arrived"),
        () = eventually(HANG, "all are held", async || proxied.held() == KEYS.len()) => {}
    }
    proxied.heal();
    shutdown.await;
    assert_eq!(proxied.held(), 0, "released before the shutdown returns");
}

/// Without a runtime around it, as at the end of `main`.
#[test]
fn the_drop_of_the_last_manager_waits_for_the_releases_in_the_background() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    // Several rounds, since a stall of the machine may delay a release beyond the wait, or the drop until the release has arrived.
    for _ in 0..20 {
        let (proxied, locks) = runtime.block_on(Proxied::in_the_background());
        let slow = async |_| {
            proxied
                .proxy
                .delay(Direction::Requests, Duration::from_millis(20));
        };
        let run = locks.run("k", options(), slow);
        runtime.block_on(run).expect("free");
        let another = locks.clone();
        drop(locks);
        let started = Instant::now();
        drop(another);
        let took = started.elapsed();
        let is_free = proxied.held() == 0;
        if is_free && took >= Duration::from_millis(5) {
            return;
        }
        // Without a wait, the lock is free only if this thread was stalled after the drop.
        assert!(is_free || took >= LAST_WAIT, "it did not wait: {took:?}");
    }
    panic!("no drop waited until its release arrived");
}

#[tokio::test]
async fn the_drop_of_the_last_manager_does_not_wait_for_a_server_that_never_replies() {
    let (proxied, locks) = Proxied::in_the_background().await;
    let swallow = async |_| proxied.swallow();
    proxied
        .does_not_wait(locks.run("k", options(), swallow))
        .await;
    let started = Instant::now();
    drop(locks);
    let took = started.elapsed();
    assert!(took >= LAST_WAIT && took < HANG / 2, "{took:?}");
    // The release continues after the drop.
    proxied.heal();
    proxied.becomes_free().await;
}
