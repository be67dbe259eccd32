//! Servers and proxies that refuse or fail for a while: new requests get an error that names the state, waiting requests continue
//! to wait, and leases are kept.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    sync::Arc,
    time::{Duration, Instant},
};

use lock_core::{LockError, LockGuard, LockManager, LockOptions};
use lock_tests::{
    AcquireFree as _, AfterLoss, Direction, FakeServer, Frames, HANG, Proxy, RedisServer,
    ReleaseHeld as _, checked, connect, connect_with_time_out, eventually, granted,
    nothing_is_left, unavailable,
};
use tokio::{task::JoinHandle, time::timeout};

/// A lease is renewed after a third of the ttl, so an outage may take two thirds.
const TTL: Duration = Duration::from_secs(12);

/// The most requests that a manager may send in a second while it is refused. Its lease and its waiter are retried, and a new
/// connection has commands of its own.
const MOST_A_SECOND: usize = 100;

fn most_requests(since: Instant) -> usize {
    MOST_A_SECOND * (1 + usize::try_from(since.elapsed().as_secs()).expect("few"))
}

fn options() -> LockOptions {
    LockOptions::new(TTL)
}

fn wait_for(locks: &LockManager, key: &'static str) -> JoinHandle<Result<LockGuard, LockError>> {
    let locks = locks.clone();
    tokio::spawn(async move { locks.acquire(key, options().wait(HANG)).await })
}

/// Requests a lock in vain, with a short wait.
async fn refused(locks: &LockManager) -> LockError {
    let started = Instant::now();
    let acquire = locks.acquire("refused", options().wait(Duration::from_millis(300)));
    let refused = timeout(HANG, acquire).await.expect("never hangs");
    let error = refused.expect_err("refused");
    // The bound covers the wait, a time-out of the connection, and a busy machine.
    assert!(started.elapsed() < HANG / 2, "{error:?}");
    error
}

/// Asserts that an outage is named in the error, a waiter gets its lock afterwards, a lease is kept, and no busy loop runs.
async fn assert_named_and_waited_for(
    server: &RedisServer,
    says: &str,
    begin: impl Fn(),
    end: impl Fn(),
) {
    let proxy = Proxy::start(server.port());
    let locks = connect(&proxy.url()).await;
    let held = locks.acquire_free("held", options()).await;
    held.lease().verify().await.expect("held");
    begin();
    proxy.clear_log();
    let started = Instant::now();
    unavailable(&refused(&locks).await, says);
    let tried = locks.try_acquire("refused", options()).await;
    unavailable(&tried.expect_err("refused"), says);
    let waiting = wait_for(&locks, "waited-for");
    eventually!(HANG, "renewals failed for a while" => held.lease().remaining() < TTL / 2);
    assert!(!waiting.is_finished());
    let sent = proxy.log().len();
    assert!(sent < most_requests(started), "{sent} requests");
    end();
    granted(waiting).await.release_held().await;
    eventually(HANG, "renewed", async || {
        assert!(!held.lease().is_lost());
        held.lease().remaining() > TTL / 2
    })
    .await;
    held.release().await.expect("held all the time");
    nothing_is_left(server).await;
}

#[tokio::test]
async fn a_server_that_takes_no_writes_for_a_while_is_named_and_waited_for() {
    const REPLICA: &[&str] = &["REPLICAOF", "127.0.0.1", "1"];
    const PRIMARY: &[&str] = &["REPLICAOF", "NO", "ONE"];
    const FEW_REPLICAS: &[&str] = &["CONFIG", "SET", "min-replicas-to-write", "1"];
    const NO_BOUND: &[&str] = &["CONFIG", "SET", "min-replicas-to-write", "0"];
    for (serves_stale_data, says, begin, end) in [
        ("yes", "READONLY", REPLICA, PRIMARY),
        ("no", "MASTERDOWN", REPLICA, PRIMARY),
        ("yes", "NOREPLICAS", FEW_REPLICAS, NO_BOUND),
    ] {
        let builder = RedisServer::builder();
        let builder = builder.setting("replica-serve-stale-data", serves_stale_data);
        let server = builder.start();
        let send = |command| drop(server.cli(command));
        assert_named_and_waited_for(&server, says, || send(begin), || send(end)).await;
    }
}

#[tokio::test]
async fn a_server_that_cannot_save_is_named_and_waited_for() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let data = folder.path().join("data");
    std::fs::create_dir(&data).expect("a folder");
    let server = RedisServer::builder()
        .setting("dir", data.to_str().expect("text"))
        .start();
    std::fs::remove_dir(&data).expect("empty");
    let fail_to_save = || {
        server.cli(&["CONFIG", "SET", "save", "3600 100000"]);
        server.cli(&["BGSAVE"]);
        lock_tests::eventually_blocking(HANG, "it failed to save", || {
            server
                .info("persistence")
                .contains("rdb_last_bgsave_status:err")
        });
    };
    assert_named_and_waited_for(&server, "MISCONF", fail_to_save, || {
        drop(server.cli(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]));
    })
    .await;
    // A release is refused, too, and is retried until it is accepted.
    let locks = connect(&server.url()).await;
    let held = locks.acquire_free("held", options()).await;
    server.cli(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "yes"]);
    let released = timeout(HANG, held.release()).await.expect("no hang");
    unavailable(&released.expect_err("refused"), "MISCONF");
    server.cli(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]);
    nothing_is_left(&server).await;
}

#[tokio::test]
async fn a_server_that_is_busy_with_a_script_is_named_and_waited_for() {
    let server = Arc::new(RedisServer::start());
    server.cli(&["CONFIG", "SET", "lua-time-limit", "100"]);
    let begin = || {
        let server = server.clone();
        // The command fails, since it is killed.
        drop(std::thread::spawn(move || {
            server.try_cli(&["EVAL", "while true do end", "0"])
        }));
    };
    let is_busy = |server: &RedisServer| {
        let error = server.try_cli(&["PING"]).err();
        error.is_some_and(|error| error.to_string().contains("BUSY"))
    };
    assert_named_and_waited_for(
        &server,
        "BUSY",
        || {
            begin();
            lock_tests::eventually_blocking(HANG, "it is busy", || is_busy(&server));
        },
        || drop(server.cli(&["SCRIPT", "KILL"])),
    )
    .await;
}

#[tokio::test]
async fn a_server_that_loads_its_data_is_named_and_waited_for() {
    let server = Arc::new(
        RedisServer::builder()
            // Loading takes at least 10 s, which is enough for the checks below.
            .setting("key-load-delay", "200")
            .setting("loading-process-events-interval-bytes", "1024")
            .start(),
    );
    server.cli(&["DEBUG", "POPULATE", "50000"]);
    server.cli(&["SAVE"]);
    let proxy = Proxy::start(server.port());
    let locks = connect(&proxy.url()).await;
    let guard = locks.acquire_free("k", options()).await;
    let first = guard.lease().fencing_token();
    guard.release_held().await;
    server.kill9();
    let loading = server.clone();
    let restarted = tokio::task::spawn_blocking(move || loading.restart());
    eventually(HANG, "it is loading", async || {
        let tried = locks.try_acquire("k", options()).await;
        let error = format!("{:?}", tried.expect_err("it is loading"));
        error.contains("LOADING")
    })
    .await;
    proxy.clear_log();
    let started = Instant::now();
    unavailable(&refused(&locks).await, "LOADING");
    let guard = granted(wait_for(&locks, "k")).await;
    let sent = proxy.log().len();
    assert!(sent < most_requests(started), "{sent} requests");
    assert!(guard.lease().fencing_token() > first);
    guard.release_held().await;
    restarted.await.expect("it is up again");
    server.cli(&["FLUSHALL"]);
}

#[tokio::test]
async fn a_server_with_too_many_clients_is_named_and_waited_for() {
    let server = RedisServer::start();
    // It stays connected, since another connection would be refused.
    let operator = TcpStream::connect(("127.0.0.1", server.port())).expect("it listens");
    let admit = |count: u32| {
        let (mut operator, mut reply) = (&operator, [0; 5]);
        write!(operator, "CONFIG SET maxclients {count}\r\n").expect("it is up");
        operator.read_exact(&mut reply).expect("it is up");
        assert_eq!(&reply, b"+OK\r\n");
    };
    admit(1);
    for _ in 0..5 {
        let error = LockManager::connect(&server.url()).await;
        let error = error.expect_err("it is full");
        unavailable(&error, "max number of clients reached");
    }
    admit(100);
    a_failed_greeting_is_waited_for(&server, |_| admit(1), |_| admit(100)).await;
}

#[tokio::test]
async fn an_error_does_not_suggest_tls_for_a_server_that_was_reached_without() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let locks = connect(&proxy.url()).await;
    // Like a server that restarts: the connection ends within the handshake.
    proxy.lose(Direction::Requests, Frames::every(), AfterLoss::Reset);
    proxy.reset();
    let error = format!("{:?}", refused(&locks).await);
    assert!(!error.contains("TLS"), "{error}");
    let first = LockManager::connect(&proxy.url()).await;
    unavailable(&first.expect_err("it is reset"), "cannot connect");
}

/// Checks a wait for a held lock where no message announces that it is free.
async fn a_waiter_polls(server: &RedisServer, locks: &LockManager) {
    let holder = connect(&server.url()).await;
    let guard = holder.acquire_free("k", options()).await;
    let before = server.calls("evalsha");
    let waiting = wait_for(locks, "k");
    eventually!(HANG, "it asks a few times" => server.calls("evalsha") >= before + 5);
    guard.release_held().await;
    granted(waiting).await.release_held().await;
    nothing_is_left(server).await;
}

#[tokio::test]
async fn a_proxy_that_swallows_subscriptions_costs_the_messages_and_not_the_locks() {
    let server = RedisServer::start();
    for protocol in [3, 2] {
        let proxy = Proxy::start(server.port());
        proxy.lose(
            Direction::Requests,
            Frames::of("SUBSCRIBE"),
            AfterLoss::Silence,
        );
        let patience = Duration::from_secs(8);
        let started = Instant::now();
        let locks = LockManager::builder()
            .connect_timeout(patience)
            .connect(&format!("{}?protocol={protocol}", proxy.url()))
            .await
            .expect("without messages");
        assert!(started.elapsed() < patience, "{:?}", started.elapsed());
        a_waiter_polls(&server, &locks).await;
        let health = checked(&locks).await;
        assert_eq!(health.warnings, []);
        assert!(!health.servers[0].notifies, "{health:?}");
    }
}

#[tokio::test]
async fn a_right_that_is_revoked_for_a_while_costs_no_lease() {
    let server = RedisServer::start();
    server.cli(&["ACL", "SETUSER", "u", "on", ">word", "~*", "&*", "+@all"]);
    let proxy = Proxy::start(server.port());
    let locks = connect(&proxy.url_as("u", "word")).await;
    let held = locks.acquire_free("held", options()).await;
    held.lease().verify().await.expect("held");
    // A free lock is taken without a script.
    server.cli(&["ACL", "SETUSER", "u", "-evalsha", "-set"]);
    proxy.clear_log();
    let started = Instant::now();
    let acquire = locks.acquire("refused", options().wait(HANG));
    let error = timeout(HANG, acquire).await.expect("no hang");
    unavailable(&error.expect_err("refused"), "NOPERM");
    assert!(started.elapsed() < HANG / 2, "not tried again and again");
    // Three plain commands for a free lock, and one script.
    assert!(proxy.log().len() <= 4, "{:?}", proxy.log());
    eventually!(HANG, "renewals failed for a while" => held.lease().remaining() < TTL / 2);
    assert!(proxy.log().len() < MOST_A_SECOND, "{}", proxy.log().len());
    server.cli(&["ACL", "SETUSER", "u", "+evalsha", "+set"]);
    eventually(HANG, "renewed", async || {
        assert!(!held.lease().is_lost());
        held.lease().remaining() > TTL / 2
    })
    .await;
    held.release().await.expect("held all the time");
    nothing_is_left(&server).await;
}

#[tokio::test]
async fn many_waiters_at_a_replica_connect_and_poll_with_pauses() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let locks = connect_with_time_out(Duration::from_secs(10), &proxy.url()).await;
    server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    let waiting: Vec<_> = (0..200)
        .map(|number| {
            let locks = locks.clone();
            let key = format!("k{number}");
            tokio::spawn(async move { locks.acquire(key, options().wait(HANG)).await })
        })
        .collect();
    let (started, before) = (Instant::now(), proxy.connections());
    proxy.clear_log();
    // Other acquires follow each other, and each of them reconnects.
    eventually(HANG, "it has reconnected often", async || {
        let tried = locks.try_acquire("another", options()).await;
        tried.expect_err("refused");
        proxy.connections() >= before + 30
    })
    .await;
    // At most one connection every 50 ms.
    let made = proxy.connections() - before;
    let most = started.elapsed().as_millis() / 50 + 1;
    assert!(u128::from(made) <= most, "{made}, and not {most} at most");
    // Each waiter polls after a pause of its own, and not whenever another one has connected. Beyond one poll a second, it sends at most
    // 11 messages: three commands for a free lock, and polls while the pause doubles.
    let sent = proxy.log().len();
    let each = 11 + usize::try_from(started.elapsed().as_secs()).expect("few");
    assert!(sent < waiting.len() * each, "{sent} messages");
    server.cli(&["REPLICAOF", "NO", "ONE"]);
    for task in waiting {
        granted(task).await.release_held().await;
    }
    nothing_is_left(&server).await;
}

/// Another program wrote a value under the name of the queue, and removed the expiry of the lock.
#[tokio::test]
async fn a_queue_of_a_wrong_type_blocks_no_release() {
    const QUEUE: &str = "__lock_core__:waiters:lock:k";
    let server = RedisServer::start();
    let (locks, others) = (connect(&server.url()).await, connect(&server.url()).await);
    for is_forced in [false, true] {
        let guard = locks.acquire_free("k", options()).await;
        server.cli(&["SET", QUEUE, "no queue"]);
        server.cli(&["PERSIST", "lock:k"]);
        let waiting = wait_for(&others, "k");
        let before = server.calls("evalsha");
        eventually!(HANG, "it asks a few times" => server.calls("evalsha") >= before + 5);
        locks.inspect("k").await.expect("a reply").expect("held");
        if is_forced {
            locks.force_release("k").await.expect("a lock");
            drop(guard);
        } else {
            guard.release_held().await;
        }
        granted(waiting).await.release_held().await;
        assert_eq!(server.get("lock:k"), None);
        assert_eq!(server.get(QUEUE).as_deref(), Some("no queue"));
        server.cli(&["DEL", QUEUE]);
    }
}

/// Breaks the connections of a manager, and lets new ones fail at the greeting until `end`. Meanwhile, requests wait.
async fn a_failed_greeting_is_waited_for(
    server: &RedisServer,
    begin: impl Fn(&Proxy),
    end: impl Fn(&Proxy),
) {
    let proxy = Proxy::start(server.port());
    let locks = connect(&proxy.url()).await;
    let held = locks.acquire_free("held", options()).await;
    begin(&proxy);
    proxy.reset();
    let waiting = wait_for(&locks, "waited-for");
    let before = proxy.connections();
    eventually!(HANG, "it connects again and again" => proxy.connections() > before + 5);
    let tried = locks.try_acquire("refused", options()).await;
    let tried = tried.expect_err("no connection");
    assert!(matches!(tried, LockError::Unavailable { .. }), "{tried:?}");
    assert!(!waiting.is_finished(), "it does not wait: {waiting:?}");
    end(&proxy);
    granted(waiting).await.release_held().await;
    held.lease().verify().await.expect("held all the time");
    held.release_held().await;
    nothing_is_left(server).await;
}

#[tokio::test]
async fn a_greeting_that_is_cut_off_is_waited_for() {
    let cut = |proxy: &Proxy| proxy.cut(Direction::Replies, Frames::of("HELLO"));
    a_failed_greeting_is_waited_for(&RedisServer::start(), cut, Proxy::heal).await;
}

#[tokio::test]
async fn a_proxy_that_answers_by_itself_while_its_server_is_down_is_waited_for() {
    let (server, bad_gateway) = (RedisServer::start(), FakeServer::http());
    a_failed_greeting_is_waited_for(
        &server,
        |proxy| proxy.redirect_to(bad_gateway.port()),
        |proxy| proxy.redirect_to(server.port()),
    )
    .await;
}

#[tokio::test]
async fn a_first_greeting_that_is_cut_off_is_an_error_or_waited_for_lazily() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    proxy.cut(Direction::Replies, Frames::of("HELLO"));
    let failed = LockManager::connect(&proxy.url()).await;
    unavailable(&failed.expect_err("cut"), "closed the connection");
    let builder = LockManager::builder().connect_lazily();
    let locks = builder.connect(&proxy.url()).await.expect("lazily");
    let waiting = wait_for(&locks, "k");
    let before = proxy.connections();
    eventually!(HANG, "it connects again and again" => proxy.connections() > before + 5);
    proxy.heal();
    granted(waiting).await.release_held().await;
}
