//! Users without the right to run scripts, whose locks are acquired and released by plain commands and transactions.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use lock_core::{LockManager, LockOptions, inspect::Holder};
use lock_tests::{
    AcquireFree as _, AfterLoss, Direction, Frames, HANG, Kind, Proxy, RedisServer,
    ReleaseHeld as _, eventually, on_every_kind, patient,
};
use tokio::time::timeout;

on_every_kind! { server:
    a_repeated_request_leaves_the_fencing_clock_alone
    many_leases_are_renewed_over_a_slow_network
    the_validity_counts_from_the_request_that_was_repeated
    a_lock_that_a_waiter_cannot_take_over_is_requested_after_its_release
    waiters_with_scripts_poll_for_a_holder_without_scripts
}

const CLOCK: &str = "__lock_core__:clock";

/// Starts a server on which the user `plain` may do everything but run scripts.
fn server(kind: Kind) -> RedisServer {
    let server = RedisServer::builder().kind(kind).start();
    server.add_user_without_scripts();
    server
}

async fn connect(server: &RedisServer) -> LockManager {
    LockManager::connect(&server.url_without_scripts())
        .await
        .expect("transactions will do")
}

/// Each step of the clock is a write, which goes to replicas and files.
async fn a_repeated_request_leaves_the_fencing_clock_alone(server: &RedisServer) {
    let (one, other) = (connect(server).await, connect(server).await);
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
    let locks = LockManager::connect(&proxy.url_without_scripts())
        .await
        .expect("up");
    let (mut held, before) = (Vec::new(), server.calls("pexpire"));
    // Their renewals become due one after the other, faster than a transaction ends.
    proxy.delay(Direction::Replies, Duration::from_millis(15));
    for number in 0..200 {
        let ttl = LockOptions::new(Duration::from_secs(18));
        held.push(locks.acquire_free(format!("k{number}"), ttl).await);
    }
    // One after the other, the renewals would take a minute, since each waits for two replies.
    proxy.delay(Direction::Replies, Duration::from_millis(150));
    eventually!(HANG, "every lease is renewed" => server.calls("pexpire") >= before + 200);
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
    let locks = LockManager::builder()
        .command_timeout(Duration::from_secs(1))
        .connect(&proxy.url_without_scripts())
        .await
        .expect("up");
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
    let locks = LockManager::connect(&proxy.url_without_scripts())
        .await
        .expect("up");
    let mut releasing = Vec::new();
    for number in 0..200 {
        let guard = locks.acquire(format!("k{number}"), LockOptions::new(HANG));
        releasing.push(guard.await.expect("free"));
    }
    let short = LockOptions::new(Duration::from_secs(4));
    let held = locks.acquire("held", short).await.expect("free");
    proxy.delay(Direction::Replies, Duration::from_millis(20));
    let releasing: Vec<_> = releasing
        .into_iter()
        .map(|guard| tokio::spawn(guard.release()))
        .collect();
    eventually(HANG, "all are released, or it is lost", async || {
        held.lease().is_lost() || releasing.iter().all(tokio::task::JoinHandle::is_finished)
    })
    .await;
    assert!(!held.lease().is_lost());
    proxy.delay(Direction::Replies, Duration::ZERO);
    held.release().await.expect("held");
}

/// A proxy that closes a connection once, right after the reply to a read of watched keys. The client finds it closed when it sends
/// the rest of the transaction, and may open another one.
struct Cut {
    port: u16,
    /// Runs between the read and its reply.
    meanwhile: Arc<Mutex<Option<Meanwhile>>>,
}

type Meanwhile = Box<dyn FnOnce() + Send>;

impl Cut {
    fn start(server_port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let meanwhile = Arc::<Mutex<Option<Meanwhile>>>::default();
        let armed = meanwhile.clone();
        thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.expect("a connection");
                let server = TcpStream::connect(("127.0.0.1", server_port)).expect("it is up");
                pass_on(client, server, armed.clone());
            }
        });
        Self { port, meanwhile }
    }

    fn url(&self) -> String {
        format!("redis://plain:word@127.0.0.1:{}", self.port)
    }

    fn arm(&self, meanwhile: impl FnOnce() + Send + 'static) {
        *self.meanwhile.lock().expect("no panic") = Some(Box::new(meanwhile));
    }

    fn has_cut(&self) -> bool {
        self.meanwhile.lock().expect("no panic").is_none()
    }
}

fn pass_on(client: TcpStream, server: TcpStream, armed: Arc<Mutex<Option<Meanwhile>>>) {
    let reads = Arc::new(AtomicBool::new(false));
    let (mut from, mut to) = (
        client.try_clone().expect("a socket"),
        server.try_clone().expect("a socket"),
    );
    let noted = reads.clone();
    thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            let is_read = bytes[..count].windows(5).any(|word| word == b"WATCH");
            noted.fetch_or(is_read, Ordering::SeqCst);
            if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        to.shutdown(Shutdown::Both).ok();
    });
    let (mut from, mut to) = (server, client);
    thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            let meanwhile = if reads.swap(false, Ordering::SeqCst) {
                armed.lock().expect("no panic").take()
            } else {
                None
            };
            let ends = meanwhile.is_some();
            if let Some(meanwhile) = meanwhile {
                meanwhile();
                // The reply and the end of the connection arrive together.
                rustix::net::sockopt::set_tcp_cork(&to, true).expect("a TCP socket");
            }
            if to.write_all(&bytes[..count]).is_err() || ends {
                break;
            }
        }
        to.shutdown(Shutdown::Both).ok();
    });
}

#[tokio::test]
async fn a_transaction_that_loses_its_connection_changes_nothing_on_the_next_one() {
    let server = Arc::new(server(Kind::Distribution));
    for kept in [None, Some(Duration::from_secs(5))] {
        let proxy = Cut::start(server.port());
        let locks = LockManager::connect(&proxy.url()).await.expect("up");
        let options = kept.map_or(patient(), |kept| patient().min_hold(kept));
        let guard = locks.acquire_free("k", options).await;
        let next = server.clone();
        proxy.arm(move || drop(next.cli(&["SET", "lock:k", "another", "PX", "60000"])));
        guard
            .release()
            .await
            .expect_err("another holder has the lock");
        assert!(proxy.has_cut());
        assert_eq!(server.get("lock:k").as_deref(), Some("another"));
        let left = server.pttl("lock:k").expect("it expires");
        assert!(left > Duration::from_secs(30), "{left:?}");
        server.cli(&["DEL", "lock:k"]);
    }
}

#[tokio::test]
async fn an_abandoned_transaction_is_ended_by_the_next_one() {
    let server = server(Kind::Distribution);
    let proxy = Proxy::start(server.port());
    let locks = LockManager::builder()
        .command_timeout(Duration::from_secs(10))
        .connect(&proxy.url_without_scripts())
        .await
        .expect("up");
    let begun = server.calls("multi");
    proxy.delay(Direction::Replies, Duration::from_millis(700));
    let dropped = locks.clone();
    let check = tokio::spawn(async move { dropped.check().await.is_ok() });
    eventually!(HANG, "it renews its lock" => server.calls("multi") > begun);
    check.abort();
    drop(check.await);
    proxy.delay(Direction::Replies, Duration::ZERO);
    locks.check().await.expect("all works");
}

/// The waiter wants another ttl, so the lock is released on the server. A waiter that polled before that release would then sleep
/// for longer than its wait.
async fn a_lock_that_a_waiter_cannot_take_over_is_requested_after_its_release(
    server: &RedisServer,
) {
    let locks = LockManager::builder().polling_pause(Duration::from_secs(60));
    let url = server.url_without_scripts();
    let locks = locks.connect(&url).await.expect("transactions will do");
    for _ in 0..5 {
        let guard = locks.acquire_free("k", LockOptions::new(HANG)).await;
        let other_ttl = LockOptions::new(HANG * 2).wait(Duration::from_secs(20));
        // In this order, the task waits before the lock is released.
        let (next, ()) = tokio::join!(locks.acquire("k", other_ttl), guard.release_held());
        next.expect("free").release_held().await;
    }
}

/// A waiter with scripts usually expects a grant from the release, and checks once a second. A release without scripts grants nothing.
async fn waiters_with_scripts_poll_for_a_holder_without_scripts(server: &RedisServer) {
    let granting = RedisServer::start();
    let holder = connect(server).await;
    let guard = holder.acquire_free("k", patient()).await;
    let granted = locks_of(&granting).await.acquire_free("k", patient()).await;
    let (here, there) = (locks_of(server).await, locks_of(&granting).await);
    let seen = here.inspect("k").await.expect("a reply").expect("held");
    let process = format!("/{}", std::process::id());
    assert!(
        matches!(&seen.holder, Holder::Ours(label) if label.ends_with(&process)),
        "{seen:?}"
    );
    let asked = || [server, &granting].map(|server| server.calls("evalsha"));
    let before = asked();
    let [waiting, waiting_there] =
        [here, there].map(|locks| tokio::spawn(async move { locks.acquire("k", patient()).await }));
    eventually!(HANG, "it has polled often" => asked()[0] >= before[0] + 30);
    let [polls, checks] = [0, 1].map(|n| asked()[n] - before[n]);
    assert!(checks * 3 < polls, "{checks} checks, {polls} polls");
    guard.release_held().await;
    granted.release_held().await;
    for waiting in [waiting, waiting_there] {
        let granted = timeout(HANG, waiting).await.expect("no missed chance");
        drop(granted.expect("no panic").expect("free"));
    }
}

/// A manager of a user with the right to run scripts.
async fn locks_of(server: &RedisServer) -> LockManager {
    let connected = LockManager::connect(&server.url()).await;
    connected.expect("a server with scripts")
}

#[tokio::test]
async fn a_key_that_changes_hands_within_a_transaction_is_left_alone() {
    let server = server(Kind::Distribution);
    let proxy = Proxy::start(server.port());
    let locks = LockManager::connect(&proxy.url_without_scripts()).await;
    let guard = locks.expect("up").acquire_free("k", patient()).await;
    proxy.delay(Direction::Requests, Duration::from_millis(200));
    let before = server.calls("watch");
    let release = tokio::spawn(guard.release());
    eventually!(HANG, "it has read the key" => server.calls("watch") > before);
    server.cli(&["SET", "lock:k", "another", "PX", "60000"]);
    release.await.expect("no panic").ok();
    assert_eq!(server.get("lock:k").as_deref(), Some("another"));
}
