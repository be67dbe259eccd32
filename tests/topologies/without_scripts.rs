//! Users without the right to run scripts, whose locks are acquired and released by plain commands and transactions.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use lock_core::{
    LockError, LockGuard, LockManager, LockManagerBuilder, LockOptions, inspect::Holder,
};
use lock_tests::{
    AcquireFree as _, AfterLoss, Direction, Frames, HANG, Kind, Proxy, RedisServer,
    ReleaseHeld as _, SECOND, assert_fails, connect, eventually, granted, on_every_kind, patient,
};
use tokio::{task::JoinHandle, time::timeout};

on_every_kind! { server:
    a_repeated_request_leaves_the_fencing_clock_alone
    many_leases_are_renewed_over_a_slow_network
    the_validity_counts_from_the_request_that_was_repeated
    a_lock_that_a_waiter_cannot_take_over_is_requested_after_its_release
    the_holder_without_scripts_is_named_by_its_process
    waiters_with_scripts_poll_for_a_holder_without_scripts
}

const CLOCK: &str = "__lock_core__:clock";

/// Starts a server on which the user `plain` may do everything but run scripts.
fn server(kind: Kind) -> RedisServer {
    let server = RedisServer::builder().kind(kind).start();
    server.add_user_without_scripts();
    server
}

/// Connects the user without scripts to a server, or to a proxy in front of it.
async fn without_scripts(port: u16) -> LockManager {
    built_without_scripts(LockManager::builder(), port).await
}

async fn built_without_scripts(builder: LockManagerBuilder, port: u16) -> LockManager {
    let (user, password) = RedisServer::WITHOUT_SCRIPTS;
    let url = format!("redis://{user}:{password}@127.0.0.1:{port}");
    builder.connect(&url).await.expect("transactions will do")
}

async fn with_scripts(server: &RedisServer) -> LockManager {
    connect(&server.url()).await
}

/// Each step of the clock is a write, which goes to replicas and files.
async fn a_repeated_request_leaves_the_fencing_clock_alone(server: &RedisServer) {
    let one = without_scripts(server.port()).await;
    let other = without_scripts(server.port()).await;
    let guard = one.acquire_free("k", patient()).await;
    let waiting = tokio::spawn(async move { other.acquire("k", patient()).await });
    let asked = server.calls("set");
    eventually!(HANG, "it asks" => server.calls("set") > asked);
    let (asked, given) = (server.calls("set"), server.fencing_clock(CLOCK));
    eventually!(HANG, "it keeps asking" => server.calls("set") >= asked + 5);
    assert_eq!(server.fencing_clock(CLOCK), given);
    guard.release_held().await;
    let granted = timeout(HANG, waiting).await.expect("no missed chance");
    drop(granted.expect("no panic").expect("free"));
}

async fn many_leases_are_renewed_over_a_slow_network(server: &RedisServer) {
    let proxy = Proxy::start(server.port());
    let locks = without_scripts(proxy.port()).await;
    let (mut held, before) = (Vec::new(), server.calls("pexpire"));
    // Their renewals become due one after the other, faster than a transaction ends.
    proxy.delay(Direction::Replies, Duration::from_millis(15));
    for number in 0..200 {
        let options = LockOptions::new(Duration::from_secs(18));
        held.push(locks.acquire_free(format!("k{number}"), options).await);
    }
    // One after the other, the renewals would take a minute, since each waits for two replies.
    proxy.delay(Direction::Replies, Duration::from_millis(150));
    eventually!(HANG, "as many renewals as leases" => server.calls("pexpire") >= before + 200);
    let mut lost = Vec::new();
    for guard in &held {
        if guard.lease().is_lost() {
            lost.push((guard.key().clone(), guard.lease().lost().await));
        }
    }
    assert!(lost.is_empty(), "{lost:?}");
}

async fn the_validity_counts_from_the_request_that_was_repeated(server: &RedisServer) {
    let proxy = Proxy::start(server.port());
    let builder = LockManager::builder().command_timeout(SECOND);
    let locks = built_without_scripts(builder, proxy.port()).await;
    // The second request is sent a command time-out later, and finds its own key.
    proxy.lose(
        Direction::Replies,
        Frames::nth_of(1, "SET"),
        AfterLoss::Silence,
    );
    let guard = locks.acquire("k", patient()).await.expect("its own key");
    let (believed, left) = (guard.lease().remaining(), server.pttl("lock:k"));
    assert!(
        left.is_some_and(|left| believed <= left),
        "{believed:?} of {left:?}"
    );
    guard.release_held().await;
    eventually!(HANG, "it is gone" => server.keys("lock:*").is_empty());
}

/// Transactions run one after the other, and the renewal of a held lock must not wait for all of them.
#[tokio::test]
async fn releases_of_many_locks_do_not_delay_renewals() {
    let server = server(Kind::Distribution);
    let proxy = Proxy::start(server.port());
    let locks = without_scripts(proxy.port()).await;
    let mut releasing = Vec::new();
    for number in 0..200 {
        let guard = locks.acquire_free(format!("k{number}"), LockOptions::new(HANG));
        releasing.push(guard.await);
    }
    let options = LockOptions::new(Duration::from_secs(4));
    let held = locks.acquire_free("held", options).await;
    proxy.delay(Direction::Replies, Duration::from_millis(20));
    let releasing: Vec<_> = releasing
        .into_iter()
        .map(|guard| tokio::spawn(guard.release()))
        .collect();
    eventually(HANG, "all are released, or it is lost", async || {
        held.lease().is_lost() || releasing.iter().all(JoinHandle::is_finished)
    })
    .await;
    assert!(!held.lease().is_lost());
    proxy.delay(Direction::Replies, Duration::ZERO);
    held.release().await.expect("held");
}

/// A proxy that lets another holder take the key once, right after the key was read.
struct TakeOver {
    port: u16,
    is_due: Arc<AtomicBool>,
}

/// The fate of a connection after the reply to the read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Connection {
    Continues,
    /// The client finds it closed when it sends the rest of the transaction, and may open another one.
    Ends,
}

impl TakeOver {
    fn start(server: &Arc<RedisServer>, connection: Connection) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let is_due = Arc::<AtomicBool>::default();
        // The server ends with the test, although this thread does not.
        let (server, due) = (Arc::downgrade(server), is_due.clone());
        thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.expect("a connection");
                pass_on(client, server.clone(), due.clone(), connection);
            }
        });
        Self { port, is_due }
    }
}

fn pass_on(
    client: TcpStream,
    server: Weak<RedisServer>,
    is_due: Arc<AtomicBool>,
    connection: Connection,
) {
    let server_of_test = move || server.upgrade().expect("a server as long as its clients");
    let upstream = TcpStream::connect(("127.0.0.1", server_of_test().port())).expect("it is up");
    let clone = |socket: &TcpStream| socket.try_clone().expect("a socket");
    let reads = Arc::new(AtomicBool::new(false));
    let noted = reads.clone();
    copy(clone(&client), clone(&upstream), move |request, _| {
        let is_read = request.windows(5).any(|word| word == b"WATCH");
        noted.fetch_or(is_read, Ordering::SeqCst);
        false
    });
    copy(upstream, client, move |_, client| {
        let is_now = reads.swap(false, Ordering::SeqCst) && is_due.swap(false, Ordering::SeqCst);
        if is_now {
            server_of_test().cli(&["SET", "lock:k", "another", "PX", "60000"]);
            // If the connection ends, the reply and its end arrive together.
            rustix::net::sockopt::set_tcp_cork(client, connection == Connection::Ends)
                .expect("a TCP socket");
        }
        is_now && connection == Connection::Ends
    });
}

/// Copies one direction of a connection, up to and including the bytes that are the last ones.
fn copy(
    mut from: TcpStream,
    mut to: TcpStream,
    mut are_last: impl FnMut(&[u8], &TcpStream) -> bool + Send + 'static,
) {
    thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            let bytes = &bytes[..count];
            let are_last = are_last(bytes, &to);
            if to.write_all(bytes).is_err() || are_last {
                break;
            }
        }
        to.shutdown(Shutdown::Both).ok();
    });
}

#[tokio::test]
async fn a_transaction_that_loses_its_connection_changes_nothing_on_the_next_one() {
    for options in [patient(), patient().min_hold(SECOND * 5)] {
        assert_spares_the_next_holder(options, Connection::Ends).await;
    }
}

#[tokio::test]
async fn a_key_that_changes_hands_within_a_transaction_is_left_alone() {
    assert_spares_the_next_holder(patient(), Connection::Continues).await;
}

/// Asserts that a release reports the loss of a key that is taken over within its transaction, and changes nothing.
async fn assert_spares_the_next_holder(options: LockOptions, connection: Connection) {
    let server = Arc::new(server(Kind::Distribution));
    let proxy = TakeOver::start(&server, connection);
    let locks = without_scripts(proxy.port).await;
    let guard = locks.acquire_free("k", options).await;
    proxy.is_due.store(true, Ordering::SeqCst);
    let released = guard.release().await;
    assert_fails!(released, LockError::Lost { .. });
    assert!(!proxy.is_due.load(Ordering::SeqCst), "it was taken over");
    assert_eq!(server.get("lock:k").as_deref(), Some("another"));
    let left = server.pttl("lock:k").expect("it expires");
    assert!(left > Duration::from_secs(30), "{left:?}");
}

#[tokio::test]
async fn a_transaction_that_is_given_up_before_exec_does_not_break_the_next_one() {
    let server = server(Kind::Distribution);
    let proxy = Proxy::start(server.port());
    let builder = LockManager::builder().command_timeout(SECOND);
    let locks = built_without_scripts(builder, proxy.port()).await;
    // The first renewal is due after 20 s.
    let guard = locks.acquire_free("k", LockOptions::new(HANG)).await;
    let (begun, executed) = (server.calls("multi"), server.calls("exec"));
    proxy.delay(Direction::Replies, SECOND * 5);
    let late = guard.lease().verify().await;
    assert_fails!(late, LockError::Unavailable { .. });
    let begun = server.calls("multi") - begun;
    assert!(begun > 0, "it was given up within the transaction");
    // A transaction begins with an EXEC, and ends with another one.
    assert_eq!(
        server.calls("exec") - executed,
        begun,
        "it was given up before its end"
    );
    proxy.delay(Direction::Replies, Duration::ZERO);
    eventually!(HANG, "the next one works" => guard.lease().verify().await.is_ok());
    guard.release_held().await;
}

/// The waiter wants another ttl, so the lock is released on the server. A waiter that polled before that release would then sleep
/// for longer than its wait.
async fn a_lock_that_a_waiter_cannot_take_over_is_requested_after_its_release(
    server: &RedisServer,
) {
    let builder = LockManager::builder().polling_pause(SECOND * 60);
    let locks = built_without_scripts(builder, server.port()).await;
    for _ in 0..5 {
        let guard = locks.acquire_free("k", LockOptions::new(HANG)).await;
        let options = LockOptions::new(HANG * 2).wait(Duration::from_secs(20));
        // In this order, the task waits before the lock is released.
        let (next, ()) = tokio::join!(locks.acquire("k", options), guard.release_held());
        next.expect("free").release_held().await;
    }
}

async fn the_holder_without_scripts_is_named_by_its_process(server: &RedisServer) {
    let holder = without_scripts(server.port()).await;
    let guard = holder.acquire_free("k", patient()).await;
    let seen = with_scripts(server).await.inspect("k").await;
    let seen = seen.expect("a reply").expect("held");
    let process = format!("/{}", std::process::id());
    assert!(
        matches!(&seen.holder, Holder::Ours(label) if label.ends_with(&process)),
        "{seen:?}"
    );
    guard.release_held().await;
}

/// A release without scripts grants nothing. A waiter that expects a grant checks its entry once a second, and one that polls asks many
/// times a second.
async fn waiters_with_scripts_poll_for_a_holder_without_scripts(server: &RedisServer) {
    let granting = RedisServer::start();
    let polls = Contended::by(&without_scripts(server.port()).await, server).await;
    let checks = Contended::by(&with_scripts(&granting).await, &granting).await;
    // Both wait from here on.
    let before = (polls.requests(), checks.requests());
    eventually!(HANG, "it has checked a few times" => checks.requests() >= before.1 + 3);
    let (polled, checked) = (polls.requests() - before.0, checks.requests() - before.1);
    assert!(checked * 3 < polled, "{checked} checks, {polled} polls");
    for contended in [polls, checks] {
        contended.guard.release_held().await;
        drop(granted(contended.waiting).await);
    }
}

/// A lock that is held, and for which a manager with scripts waits.
struct Contended<'a> {
    server: &'a RedisServer,
    guard: LockGuard,
    waiting: JoinHandle<Result<LockGuard, LockError>>,
    before: u64,
}

impl<'a> Contended<'a> {
    async fn by(holder: &LockManager, server: &'a RedisServer) -> Self {
        let guard = holder.acquire_free("k", patient()).await;
        let waiter = with_scripts(server).await;
        let before = server.calls("evalsha");
        let waiting = tokio::spawn(async move { waiter.acquire("k", patient()).await });
        Self {
            server,
            guard,
            waiting,
            before,
        }
    }

    /// Returns how often the waiter has asked for the lock.
    fn requests(&self) -> u64 {
        self.server.calls("evalsha") - self.before
    }
}
