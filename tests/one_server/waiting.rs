//! Every way in which a wait can end or go wrong, on a real server. Each manager represents a process: it has a connection, a
//! thread and a place in the queue of its own. Tests that stop a process start a real one.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    task::{Context, Waker},
    time::{Duration, Instant},
};

use lock_core::{LockError, LockGuard, LockManager, LockOptions};
use lock_tests::{
    AcquireFree as _, FakeServer, HANG, Process, Proxy, RedisServer, ReleaseHeld as _, Reply,
    SECOND, assert_fails, connect, eventually, granted, patient,
};
use redis::Value;
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::stopped_waiter::QUEUE;

const BEATS: &str = "__lock_core__:beats:lock:k";
const BEATS_OF_CONTENDERS: &str = "__lock_core__:beats:lock:contender:k";

/// Makes a new manager wait for `k`. It is in the server's queue when this returns.
async fn in_line(
    server: &RedisServer,
    url: &str,
    options: LockOptions,
) -> JoinHandle<Result<LockGuard, LockError>> {
    in_line_with(server, connect(url).await, options).await
}

/// [`in_line`] with a given manager.
async fn in_line_with(
    server: &RedisServer,
    locks: LockManager,
    options: LockOptions,
) -> JoinHandle<Result<LockGuard, LockError>> {
    let before = queue_length(server);
    let waiting = tokio::spawn(async move { locks.acquire("k", options).await });
    eventually!(HANG, "it is in the wait queue" => queue_length(server) > before);
    waiting
}

/// Returns the number of waiting processes.
fn queue_length(server: &RedisServer) -> usize {
    server.queue(QUEUE).len()
}

/// Starts a contender process. It is in the server's queue of `k` when this returns.
async fn process_in_line(server: &RedisServer) -> Process {
    let url = server.url();
    let before = queue_length_of(server, "lock:contender:k");
    let mut process = Process::spawn(
        env!("CARGO_BIN_EXE_contender"),
        &[&url, &url, "k", "1", "1", "locked"],
        &[],
    );
    assert_eq!(process.line(), "ready");
    process.say("go");
    eventually(HANG, "it is in the wait queue", async || {
        queue_length_of(server, "lock:contender:k") > before
    })
    .await;
    process
}

fn queue_length_of(server: &RedisServer, full_key: &str) -> usize {
    let queue = format!("__lock_core__:waiters:{full_key}");
    server.queue(&queue).len()
}

/// Waits until only the fencing clock is left, when the beats have expired.
async fn nothing_stays(server: &RedisServer) {
    eventually(HANG, "no lock, waiter or beat is left", async || {
        server.keys("lock:*").is_empty()
            && queue_length(server) == 0
            && server.keys("__lock_core__:beats:*").is_empty()
    })
    .await;
    let others = server.keys("*");
    assert!(
        others.iter().all(|key| key == "__lock_core__:clock"),
        "{others:?}"
    );
}

#[tokio::test]
async fn processes_are_served_first_come_first_served() {
    let server = RedisServer::start();
    let first = connect(&server.url())
        .await
        .acquire_free("k", patient())
        .await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut waiting = Vec::new();
    for number in 0..8 {
        let waits = in_line(&server, &server.url(), patient()).await;
        let order = order.clone();
        waiting.push(tokio::spawn(async move {
            let guard = granted(waits).await;
            order
                .lock()
                .expect("no panic")
                .push((number, u64::from(guard.lease().fencing_token())));
            guard.release_held().await;
        }));
    }
    first.release_held().await;
    for task in waiting {
        task.await.expect("no assertion failed");
    }
    let order = order.lock().expect("no panic").clone();
    assert!(
        order
            .windows(2)
            .all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1),
        "{order:?}"
    );
    nothing_stays(&server).await;
}

#[tokio::test]
async fn a_waiter_gets_a_message_and_does_not_poll() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let holder = connect(&server.url()).await;
    let guard = holder.acquire_free("k", patient()).await;
    let waiting = in_line(&server, &proxy.url(), patient()).await;
    let (started, before) = (Instant::now(), proxy.requests("EVALSHA"));
    eventually!(HANG, "it sends beats" => proxy.requests("EVALSHA") >= before + 3);
    assert!(
        started.elapsed() > SECOND,
        "three beats in {:?}",
        started.elapsed()
    );
    guard.release_held().await;
    granted(waiting).await.release_held().await;
    assert_granted_by_message(&server, &proxy, &holder, &connect(&proxy.url()).await).await;
    nothing_stays(&server).await;
}

/// Asserts that a waiter behind a proxy needs no request to get the lock. There are several rounds, since a beat may find the grant
/// before the message arrives.
pub(crate) async fn assert_granted_by_message(
    server: &RedisServer,
    proxy: &Proxy,
    holder: &LockManager,
    waiter: &LockManager,
) {
    for _ in 0..10 {
        let guard = holder.acquire_free("k", patient()).await;
        let waiting = in_line_with(server, waiter.clone(), patient()).await;
        let asked = proxy.requests("EVALSHA");
        guard.release_held().await;
        let granted = granted(waiting).await;
        let is_by_message = proxy.requests("EVALSHA") == asked;
        granted.release_held().await;
        if is_by_message {
            return;
        }
    }
    panic!("the waiter asked each time");
}

#[tokio::test]
async fn a_wait_that_times_out_leaves_the_queue() {
    let server = RedisServer::start();
    let guard = connect(&server.url())
        .await
        .acquire_free("k", patient())
        .await;
    let locks = connect(&server.url()).await;
    let busy = locks.acquire("k", patient().wait(SECOND)).await;
    let Err(LockError::Busy {
        retry_after: Some(retry_after),
        ..
    }) = busy
    else {
        panic!("not busy: {busy:?}")
    };
    assert!(retry_after <= SECOND * 10, "{retry_after:?}");
    eventually(
        SECOND * 10,
        "it left the queue, long before its entry expires",
        async || queue_length(&server) == 0,
    )
    .await;
    guard.release_held().await;
    nothing_stays(&server).await;
}

#[tokio::test]
async fn a_waiter_that_is_stopped_is_passed_over_and_waits_again_when_it_continues() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    let guard = locks.acquire_free("contender:k", patient()).await;
    let stopped = process_in_line(&server).await;
    let other = process_in_line(&server).await;
    stopped.stop();
    // The other waiter sends a beat once a second.
    let last = || server.cli(&["ZRANGE", BEATS_OF_CONTENDERS, "-1", "-1", "WITHSCORES"]);
    for _ in 0..4 {
        let before = last();
        eventually!(HANG, "a beat" => last() != before);
    }
    guard.release_held().await;
    let started = Instant::now();
    other.join();
    assert!(
        started.elapsed() < SECOND * 30,
        "not blocked by the stopped one: {:?}",
        started.elapsed()
    );
    stopped.cont();
    stopped.join();
    assert_eq!(server.get("k").as_deref(), Some("2"), "both had their turn");
}

#[tokio::test]
async fn a_key_that_was_deleted_or_shortened_by_hand_is_noticed() {
    for command in [&["DEL", "lock:k"][..], &["PEXPIRE", "lock:k", "20"]] {
        let server = RedisServer::start();
        let guard = connect(&server.url())
            .await
            .acquire_free("k", LockOptions::new(SECOND * 3600))
            .await;
        let waiting = in_line(&server, &server.url(), patient()).await;
        // Each check of the place is a beat. With the second one, the first check of the holder's expiry is over.
        let beats = || server.cli(&["ZRANGE", BEATS, "0", "-1", "WITHSCORES"]);
        let first = beats();
        eventually(HANG, "a beat", async || beats() != first).await;
        server.cli(command);
        let started = Instant::now();
        let next = granted(waiting).await;
        // The waiter noticed it at a beat, long before the first holder's renewal or expected expiry.
        assert!(started.elapsed() < SECOND * 30, "{:?}", started.elapsed());
        assert!(next.lease().fencing_token() > guard.lease().fencing_token());
        next.release_held().await;
    }
}

/// The process of the waiter returns the lock once, and sends no further request before the waiter is polled.
#[tokio::test]
async fn a_task_that_is_not_polled_delays_other_processes_once() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    let first = locks.acquire_free("k", patient()).await;
    let mut unpolled = Box::pin(locks.acquire("k", patient()));
    assert!(
        timeout(Duration::from_millis(10), &mut unpolled)
            .await
            .is_err()
    );
    // The waiter is the next one in this process.
    first.release_held().await;
    let others = connect(&server.url()).await;
    let guard = others.acquire("k", patient()).await.expect("returned");
    guard.release_held().await;
    for _ in 0..20 {
        let guard = others.try_acquire("k", patient()).await.expect("a reply");
        guard.expect("free").release_held().await;
    }
    let late = timeout(HANG, unpolled)
        .await
        .expect("polled again")
        .expect("it kept its position and its wait");
    late.release_held().await;
    nothing_stays(&server).await;
}

/// The task sent its request, and does not poll for the reply.
#[tokio::test]
async fn a_request_that_is_not_polled_blocks_no_other_process() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    // The ttl is so long that no other process gets the lock by an expiry.
    let long = LockOptions::new(HANG * 4).wait(HANG);
    let mut unpolled = Box::pin(locks.acquire("k", long));
    // The server is stopped, so that the reply does not arrive within the poll.
    server.stop();
    let polled = unpolled
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()));
    server.cont();
    assert!(polled.is_pending());
    let others = connect(&server.url()).await;
    let guard = others.acquire("k", patient()).await.expect("returned");
    guard.release_held().await;
    let late = timeout(HANG, unpolled)
        .await
        .expect("polled again")
        .expect("it kept its wait");
    late.release_held().await;
    nothing_stays(&server).await;
}

#[tokio::test]
async fn a_waiter_survives_lost_connections_scripts_and_data() {
    // The lock is never free in between, so the waiter must join the queue again.
    const REPLACE_ALL: &str =
        "redis.call('FLUSHALL') return redis.call('SET', KEYS[1], 'another', 'PX', 60000)";
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let beats = || server.cli(&["ZRANGE", BEATS, "0", "-1", "WITHSCORES"]);
    for command in [
        &["CLIENT", "KILL", "TYPE", "pubsub"][..],
        &["CLIENT", "KILL", "TYPE", "normal"],
        &["SCRIPT", "FLUSH"],
        &["EVAL", REPLACE_ALL, "1", "lock:k"],
    ] {
        let guard = connect(&server.url())
            .await
            .acquire_free("k", patient())
            .await;
        let waiting = in_line(&server, &proxy.url(), patient()).await;
        let before = beats();
        server.cli(command);
        if command[0] == "EVAL" {
            eventually!(HANG, "it is in the wait queue again" => queue_length(&server) == 1);
            server.cli(&["DEL", "lock:k"]);
        } else {
            eventually(HANG, "a beat", async || {
                let now = beats();
                now != before && now != Value::Array(Vec::new())
            })
            .await;
        }
        drop(guard);
        let next = granted(waiting).await;
        next.release_held().await;
        nothing_stays(&server).await;
    }
}

#[tokio::test]
async fn tasks_of_one_process_hand_over_without_a_message_and_with_growing_tokens() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let locks = connect(&proxy.url()).await;
    let tokens = Arc::new(Mutex::new(Vec::new()));
    let tasks: Vec<_> = (0..16)
        .map(|_| {
            let (locks, tokens) = (locks.clone(), tokens.clone());
            tokio::spawn(async move {
                for _ in 0..100 {
                    let guard = locks.acquire("k", patient()).await.expect("its turn");
                    tokens
                        .lock()
                        .expect("no panic")
                        .push(guard.lease().fencing_token());
                    tokio::task::yield_now().await;
                    guard.release_held().await;
                }
            })
        })
        .collect();
    for task in tasks {
        timeout(HANG, task)
            .await
            .expect("no missed wake-up")
            .expect("no panic");
    }
    let tokens = tokens.lock().expect("no panic").clone();
    assert_eq!(tokens.len(), 1600);
    assert!(
        tokens.windows(2).all(|pair| pair[0] < pair[1]),
        "a token did not grow"
    );
    let messages = proxy.log().len();
    assert!(messages < 200, "{messages} messages for 1600 holders");
    nothing_stays(&server).await;
}

/// The manager's thread may check whether a renewal is due at the moment when the lease is handed over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_is_handed_over_all_the_time_is_renewed() {
    const TTL: Duration = Duration::from_millis(150);
    let server = RedisServer::start();
    // No other process waits, so the lease stays in this one as long as it is handed over.
    let locks = connect(&server.url()).await;
    let acquire = async |locks: &LockManager| {
        let until = Instant::now() + HANG;
        // On a stalled machine a round trip takes more than half of the ttl, and the acquire is refused.
        loop {
            match locks.acquire("k", LockOptions::new(TTL).wait(HANG)).await {
                Ok(guard) => return guard,
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
        }
    };
    let over = Arc::new(AtomicBool::new(false));
    let hot: Vec<_> = (0..4)
        .map(|_| {
            let (locks, over) = (locks.clone(), over.clone());
            tokio::spawn(async move {
                while !over.load(Ordering::Relaxed) {
                    let guard = acquire(&locks).await;
                    let since = Instant::now();
                    while since.elapsed() < Duration::from_micros(20) {
                        std::hint::spin_loop();
                    }
                    drop(guard);
                }
            })
        })
        .collect();
    let mut kept = 0;
    for _ in 0..30 {
        // Meanwhile the lease is handed over many times, and renewed twice.
        sleep(TTL).await;
        let guard = acquire(&locks).await;
        let (value, lease) = (server.get("lock:k"), guard.lease());
        let lost = lease.lost();
        tokio::pin!(lost);
        let seen = tokio::select! {
            biased;
            lost = &mut lost => Some(lost),
            () = sleep(TTL * 3 / 2) => None,
        };
        if seen.is_some() {
            continue;
        }
        if value.is_some() && server.get("lock:k") == value {
            kept += 1;
        } else {
            // On a stalled machine a lease may be lost, but the loss must be reported.
            let seen = timeout(HANG, lost).await;
            seen.expect("the holder learns of the loss");
        }
    }
    over.store(true, Ordering::Relaxed);
    for task in hot {
        task.await.expect("no panic");
    }
    assert!(kept > 0, "no lease was renewed");
}

#[tokio::test]
async fn a_connection_whose_handshake_fails_is_closed() {
    let (loading, tried) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU32::new(0)),
    );
    let (is_loading, count) = (loading.clone(), tried.clone());
    // A server that starts to load its data.
    let server = FakeServer::start(move |request| match request[0].as_str() {
        "HELLO" => Reply::line("-ERR unknown command 'HELLO'"),
        "PING" => Reply::pong(request),
        "EVAL" if is_loading.load(Ordering::SeqCst) => {
            count.fetch_add(1, Ordering::SeqCst);
            Reply::line("-LOADING wait")
        }
        "EVAL" | "EVALSHA" => Reply::line(":0"),
        _ => Reply::HangUp,
    });
    let locks = connect(&server.url()).await;
    loading.store(true, Ordering::SeqCst);
    eventually(HANG, "it tried many times", async || {
        drop(locks.try_acquire("k", patient()).await);
        tried.load(Ordering::SeqCst) > 10
    })
    .await;
    eventually!(HANG, "at most one try is open" => open_connections(server.port()) <= 1);
}

/// Returns the number of open connections from this machine to a port of it.
fn open_connections(port: u16) -> usize {
    let server = format!(":{port:04X}");
    let table = std::fs::read_to_string("/proc/net/tcp").expect("the list of connections");
    let is_open = |line: &&str| {
        let words: Vec<_> = line.split_whitespace().collect();
        words.get(2).is_some_and(|to| to.ends_with(&server)) && words.get(3) == Some(&"01")
    };
    table.lines().filter(is_open).count()
}

/// The waker of a broken executor.
struct Broken;

impl std::task::Wake for Broken {
    fn wake(self: Arc<Self>) {
        panic!("on purpose");
    }
}

#[tokio::test]
async fn a_waker_that_panics_does_not_stop_the_time_outs_of_others() {
    let server = RedisServer::start();
    let _held = connect(&server.url())
        .await
        .acquire_free("k", patient())
        .await;
    let locks = connect(&server.url()).await;
    let short = || LockOptions::new(SECOND * 10).wait(SECOND);
    let mut broken = Box::pin(locks.acquire("k", short()));
    for waker in [
        std::task::Waker::noop(),
        &std::task::Waker::from(Arc::new(Broken)),
    ] {
        let mut context = std::task::Context::from_waker(waker);
        assert!(broken.as_mut().poll(&mut context).is_pending());
    }
    for _ in 0..2 {
        let busy = timeout(HANG, locks.acquire("k", short()))
            .await
            .expect("its wait ends");
        assert_fails!(busy, LockError::Busy { .. });
    }
}

#[tokio::test]
async fn no_newcomer_overtakes_a_waiter() {
    let server = RedisServer::start();
    let holder = connect(&server.url()).await;
    // One newcomer acquires by plain commands, the other by a script, since it found the key busy before.
    for has_tried in [false, true] {
        let newcomer = connect(&server.url()).await;
        let guard = holder.acquire_free("k", patient()).await;
        if has_tried {
            let tried = newcomer.try_acquire("k", patient()).await;
            assert!(tried.expect("a reply").is_none());
        }
        let waiting = in_line(&server, &server.url(), patient()).await;
        let other = newcomer.acquire_free("other", patient()).await;
        // The key is free, and the newcomer is the first to notice.
        server.cli(&["DEL", "lock:k"]);
        let tried = newcomer.try_acquire("k", patient()).await.expect("a reply");
        assert!(tried.is_none());
        granted(waiting).await.release_held().await;
        other.release_held().await;
        drop(guard);
    }
}

/// Returns what a user of the server could know about the only waiter of `k`: the channel of its process, the number of its
/// entry, and its owner token, which only a reader of the queue knows.
fn only_waiter(server: &RedisServer) -> (String, String, String) {
    let entries = server.queue(QUEUE);
    let [entry] = &entries[..] else {
        panic!("not one entry: {entries:?}");
    };
    let words: Vec<_> = entry.split(' ').map(str::to_owned).collect();
    let channel = format!("__lock_core__:grants:{}", words[0]);
    (channel, words[1].clone(), words[3].clone())
}

/// Returns the word by which a grant proves that the server wrote it.
fn proof(token: &str, fencing: u64) -> String {
    let text = format!("{token} {fencing}");
    sha1_smol::Sha1::from(text).digest().to_string()
}

#[tokio::test]
async fn a_forged_message_grants_nothing_and_raises_no_token() {
    let server = RedisServer::start();
    let holder = connect(&server.url()).await;
    let guard = holder.acquire_free("k", patient()).await;
    let locks = connect(&server.url()).await;
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { locks.acquire("k", patient()).await }
    });
    eventually!(HANG, "it is in the wait queue" => queue_length(&server) == 1);
    let (channel, number, token) = only_waiter(&server);
    let known = u64::from(guard.lease().fencing_token());
    let largest = (1 << 53) - 1;
    for fencing in [1, known, known + 1, known + 1_000_000, largest] {
        let honest = proof(&token, fencing);
        let forged = [
            format!("{number} {fencing}"),
            format!("{number} {fencing} "),
            format!("{number} {fencing} {}", "0".repeat(40)),
            format!("{number} {fencing} {}", &honest[..39]),
            format!("{number} {} {honest}", fencing + 1),
            format!("{number} {} {}", 1_u64 << 53, proof(&token, 1 << 53)),
        ];
        for message in forged {
            let seen = server.cli(&["PUBLISH", &channel, &message]);
            assert_eq!(seen, Value::Int(1), "{message}");
            // The reply arrives after the message, on the same connection.
            let held = locks.inspect("k").await.expect("the server is up");
            assert!(held.is_some() && !waiting.is_finished(), "{message}");
        }
    }
    guard.release().await.expect("never lost");
    let guard = granted(waiting).await;
    assert!(u64::from(guard.lease().fencing_token()) < largest / 2);
    let other = locks.acquire_free("other", patient()).await;
    other.release_held().await;
    guard.release_held().await;
}

/// A user who may read messages and publish replays one.
#[tokio::test]
async fn a_replayed_grant_triggers_one_check() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    let known = locks.acquire_free("k", patient()).await;
    let fencing = known.lease().fencing_token().into();
    known.release_held().await;
    let guard = connect(&server.url()).await.acquire("k", patient()).await;
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { locks.acquire("k", patient()).await }
    });
    eventually!(HANG, "it is in the wait queue" => queue_length(&server) == 1);
    let (channel, number, token) = only_waiter(&server);
    let message = format!("{number} {fencing} {}", proof(&token, fencing));
    let (before, since) = (server.calls("evalsha"), Instant::now());
    for _ in 0..500 {
        assert_eq!(server.cli(&["PUBLISH", &channel, &message]), Value::Int(1));
        // The reply to this arrives after the message, so each message is read alone.
        locks.inspect("other").await.expect("the server is up");
    }
    let asked = server.calls("evalsha") - before - 500;
    // Apart from those of `inspect`, the requests are the first check and the beats of the waiter, at most one in half a second.
    let alive = since.elapsed().as_millis() / 500;
    assert!(u128::from(asked) <= 3 + alive, "{asked} in {alive}");
    assert!(!waiting.is_finished());
    drop(guard);
    granted(waiting).await.release_held().await;
}
