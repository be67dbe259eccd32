//! Faults of a server, and of the network between it and a manager.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use lock_core::{Lease, LeaseLost, LockError, LockManager, LockOptions};
use lock_tests::{
    AcquireFree as _, AfterLoss, Direction, FakeServer, Frames, HANG, Proxy, RedisServer,
    ReleaseHeld as _, Reply, Request, SECOND, Scope, assert_fails, connect, connect_with_time_out,
    eventually, granted, nothing_is_left, options, patient, reason_of_loss, reason_of_refusal,
    unavailable,
};
use tokio::time::timeout;

/// The default time-out of a reply. On a stalled machine a reply may be later, which changes the behaviour.
const COMMAND: Duration = Duration::from_secs(1);

/// Starts a server, a proxy in front of it, and a manager behind the proxy. Connecting tries a lock, so the server knows the
/// scripts.
async fn through_a_proxy() -> (RedisServer, Proxy, LockManager) {
    through_a_proxy_that_may_take(COMMAND).await
}

/// [`through_a_proxy`], with a time-out so long that no reply is late, for tests that need no late reply.
async fn through_a_proxy_without_hurry() -> (RedisServer, Proxy, LockManager) {
    through_a_proxy_that_may_take(HANG).await
}

async fn through_a_proxy_that_may_take(command: Duration) -> (RedisServer, Proxy, LockManager) {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let locks = connect_with_time_out(command, &proxy.url()).await;
    proxy.clear_log();
    (server, proxy, locks)
}

/// Returns the time at which a lease ends at the latest.
fn end(lease: &Lease) -> Instant {
    let remaining = lease.remaining();
    Instant::now() + remaining
}

/// Waits until a lease ends later than before. The condition stays true however late it is checked.
async fn renewed(lease: &Lease, before: Instant) {
    eventually(HANG, "renewed", async || {
        assert!(!lease.is_lost());
        Instant::now() + lease.remaining() > before
    })
    .await;
}

#[tokio::test]
async fn a_free_lock_takes_one_message_of_three_commands_and_one_to_release() {
    let (server, proxy, locks) = through_a_proxy_without_hurry().await;
    let guard = locks.acquire_free("k", options()).await;
    let commands = || -> Vec<_> { proxy.log().iter().map(Request::command).collect() };
    assert_eq!(commands(), ["SET", "XADD", "EXISTS"]);
    guard.release_held().await;
    assert_eq!(commands()[3..], ["EVALSHA"]);
    assert!(server.keys("lock:*").is_empty());
    // If the commands were sent in sequence, each would wait for the reply to the one before.
    proxy.clear_log();
    proxy.delay(Direction::Replies, HANG);
    let acquiring = tokio::spawn(async move { locks.acquire("k", patient()).await });
    eventually(
        HANG / 2,
        "all of them are sent without a reply",
        async || commands() == ["SET", "XADD", "EXISTS"],
    )
    .await;
    assert!(!acquiring.is_finished());
    acquiring.abort();
}

#[tokio::test]
async fn a_request_whose_reply_was_lost_is_repeated_and_not_found_busy() {
    let (server, proxy, locks) = through_a_proxy_without_hurry().await;
    proxy.lose(
        Direction::Replies,
        Frames::nth_of(1, "SET"),
        AfterLoss::Reset,
    );
    let guard = timeout(HANG, locks.acquire("k", options()))
        .await
        .expect("no hang")
        .expect("ours all the time");
    assert_eq!(proxy.requests("EVALSHA"), 1, "asked again");
    assert_eq!(server.keys("lock:*").len(), 1);
    guard.release_held().await;
    nothing_is_left(&server).await;
}

#[tokio::test]
async fn an_acquire_that_reaches_no_server_ends_with_its_wait() {
    let (server, proxy, locks) = through_a_proxy().await;
    proxy.black_hole(Scope::All);
    let started = Instant::now();
    let wait = Duration::from_millis(300);
    // With this ttl, no lock that is left would expire during the test.
    let long = || LockOptions::new(HANG * 10);
    let result = timeout(HANG, locks.acquire("k", long().wait(wait)))
        .await
        .expect("no hang");
    assert_fails!(result, LockError::Unavailable { .. });
    assert!(started.elapsed() >= wait, "{:?}", started.elapsed());
    let tried = timeout(HANG, locks.try_acquire("k", long()))
        .await
        .expect("no hang");
    assert_fails!(tried, LockError::Unavailable { .. });
    proxy.heal();
    locks
        .acquire("k", long().wait(HANG))
        .await
        .expect("works again")
        .release_held()
        .await;
    nothing_is_left(&server).await;
}

#[tokio::test]
async fn locks_work_with_replies_that_take_longer_than_a_command_may() {
    let (server, proxy, locks) = through_a_proxy().await;
    let before = proxy.connections();
    proxy.delay(Direction::Replies, COMMAND * 3 / 2);
    for round in 0..3 {
        let guard = timeout(HANG, locks.acquire("k", options().wait_forever()))
            .await
            .expect("its time-out follows the round trip")
            .expect("granted");
        if round == 0 {
            renewed(&guard.lease(), end(&guard.lease())).await;
        }
        guard.release_held().await;
    }
    assert_eq!(
        proxy.connections(),
        before,
        "a slow connection is not a dead one"
    );
    proxy.heal();
    nothing_is_left(&server).await;
}

#[tokio::test]
async fn a_half_open_connection_is_noticed_and_replaced() {
    let (_server, proxy, locks) = through_a_proxy().await;
    let before = proxy.connections();
    proxy.black_hole(Scope::Existing);
    let guard = timeout(HANG, locks.acquire("k", options()))
        .await
        .expect("no hang")
        .expect("by a new connection");
    assert!(proxy.connections() > before);
    guard.release_held().await;
}

#[tokio::test]
async fn a_connection_that_loses_requests_is_replaced_although_messages_arrive() {
    let (server, proxy, locks) = through_a_proxy().await;
    let before = proxy.connections();
    proxy.lose(Direction::Requests, Frames::every(), AfterLoss::Silence);
    // On a thread without a runtime, the request uses the connection on which messages arrive.
    let asked = std::thread::spawn(move || {
        let acquire = locks.acquire("k", patient());
        futures_executor::block_on(acquire)
    });
    eventually(HANG, "a new connection", async || {
        // Like a message from another waiting process.
        let channels = server.cli(&["PUBSUB", "CHANNELS", "*"]);
        let channels: Vec<String> = redis::from_redis_value(channels).expect("names");
        for channel in channels {
            server.cli(&["PUBLISH", &channel, "1 yield 1 of another"]);
        }
        proxy.connections() > before
    })
    .await;
    proxy.heal();
    eventually!(HANG, "there is a reply" => asked.is_finished());
    let guard = asked.join().expect("no panic");
    guard.expect("by a new connection").release_held().await;
}

#[tokio::test]
async fn the_validity_counts_from_before_the_request_left() {
    // Longer than any pause of this process.
    let [delay, ttl] = [3, 20].map(Duration::from_secs);
    let (server, proxy, locks) = through_a_proxy_that_may_take(delay * 3).await;
    proxy.delay(Direction::Replies, delay);
    let options = LockOptions::new(ttl).without_renewal();
    let guard = locks.acquire_free("k", options).await;
    // The time between the two reads only weakens the claim.
    let real = server.pttl("lock:k").expect("held");
    let believed = guard.lease().remaining();
    assert!(believed <= real, "{believed:?} of {real:?}");
    let margin = ttl / 100 + Duration::from_millis(2);
    assert!(believed + delay + margin <= ttl, "{believed:?}");
    guard.release_held().await;
}

#[tokio::test]
async fn a_round_trip_longer_than_half_of_the_ttl_is_refused_with_both_figures() {
    let (server, proxy, locks) = through_a_proxy().await;
    proxy.delay(Direction::Replies, Duration::from_millis(150));
    let result = locks
        .acquire("k", LockOptions::new(Duration::from_millis(200)))
        .await;
    let reason = reason_of_refusal(result);
    assert!(
        reason.contains("round trip") && reason.contains("ttl of 200ms"),
        "{reason}"
    );
    nothing_is_left(&server).await;
}

#[tokio::test]
async fn a_short_outage_costs_no_lease() {
    let (_server, proxy, locks) = through_a_proxy().await;
    let guard = locks
        .acquire_free("k", LockOptions::new(Duration::from_secs(12)))
        .await;
    let before = proxy.connections();
    proxy.black_hole(Scope::Existing);
    eventually(HANG, "renewed by a new connection", async || {
        assert!(!guard.lease().is_lost());
        // The first renewal leaves after a third of the ttl, and is lost. Before a new connection is open, less time remains.
        proxy.connections() > before && guard.lease().remaining() > Duration::from_secs(8)
    })
    .await;
    guard.release().await.expect("held all the time");
}

/// Sends whether the server still has the lock when this is dropped.
struct Witness(Arc<RedisServer>, mpsc::Sender<bool>);

impl Drop for Witness {
    fn drop(&mut self) {
        let Self(server, dropped) = self;
        dropped.send(server.get("lock:k").is_some()).ok();
    }
}

#[tokio::test]
async fn a_lease_that_cannot_be_renewed_ends_its_body_before_the_lock_is_free() {
    // Several rounds, since a stalled machine may end the body later than the server ends the lock.
    for _ in 0..3 {
        let (server, proxy, locks) = through_a_proxy().await;
        let server = Arc::new(server);
        let (dropped, was_held) = mpsc::channel();
        let (entered, inside) = tokio::sync::oneshot::channel();
        let running = tokio::spawn({
            let (locks, witness) = (locks.clone(), Witness(server.clone(), dropped));
            async move {
                let body = |_| async move {
                    let _witness = witness;
                    entered.send(()).expect("a task waits");
                    std::future::pending::<()>().await;
                };
                // With this ttl, the lease ends 100 ms before the lock.
                locks.run("k", options(), body).await
            }
        });
        inside.await.expect("entered");
        proxy.black_hole(Scope::All);
        let result = timeout(HANG, running)
            .await
            .expect("no hang")
            .expect("no panic");
        assert_eq!(reason_of_loss(result), LeaseLost::Expired);
        let was_held = was_held.try_recv().expect("the body has ended");
        proxy.heal();
        nothing_is_left(&server).await;
        if was_held {
            return;
        }
    }
    panic!("each body ended after the lock");
}

#[tokio::test]
async fn a_release_without_a_reply_is_an_error_and_continues_in_the_background() {
    let (server, proxy, locks) = through_a_proxy().await;
    // With this ttl, the lock would not expire during the test.
    let guard = locks.acquire_free("k", LockOptions::new(HANG * 10)).await;
    // The release is lost, so only a repeated one can free the lock.
    proxy.lose(Direction::Requests, Frames::every(), AfterLoss::Silence);
    let result = timeout(HANG, guard.release()).await.expect("no hang");
    assert_fails!(result, LockError::Unavailable { .. });
    assert_eq!(server.keys("lock:*").len(), 1);
    proxy.heal();
    nothing_is_left(&server).await;
}

#[tokio::test]
async fn a_release_whose_reply_was_lost_is_a_success() {
    let (server, proxy, locks) = through_a_proxy_without_hurry().await;
    let guard = locks.acquire_free("k", options()).await;
    proxy.lose(
        Direction::Replies,
        Frames::nth_of(1, "EVALSHA"),
        AfterLoss::Reset,
    );
    timeout(HANG, guard.release())
        .await
        .expect("no hang")
        .expect("released by the first request");
    assert_eq!(proxy.requests("EVALSHA"), 2, "two releases");
    nothing_is_left(&server).await;
}

/// Its next renewal would be a third of its ttl away.
#[tokio::test]
async fn a_lease_that_a_restarted_server_does_not_know_is_lost_at_once() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    let ttl = Duration::from_secs(600);
    let guard = locks.acquire_free("k", LockOptions::new(ttl)).await;
    server.kill9();
    server.restart();
    let reason = timeout(HANG, guard.lease().lost()).await.expect("noticed");
    assert_eq!(reason, LeaseLost::TakenAway);
    assert_eq!(server.get("lock:k"), None, "it is not recreated");
}

#[tokio::test]
async fn flushed_scripts_are_loaded_again() {
    let (server, _proxy, locks) = through_a_proxy().await;
    for _ in 0..3 {
        server.cli(&["SCRIPT", "FLUSH"]);
        let guard = locks
            .acquire_free("k", LockOptions::new(Duration::from_secs(5)))
            .await;
        server.cli(&["SCRIPT", "FLUSH"]);
        renewed(&guard.lease(), end(&guard.lease())).await;
        server.cli(&["SCRIPT", "FLUSH"]);
        guard.release_held().await;
    }
}

/// The script is large: if each renewal of a batch sent it, leases would end before the server had read all of them.
#[tokio::test]
async fn a_batch_of_renewals_sends_the_text_of_its_script_once() {
    const LEASES: usize = 100;
    let (server, proxy, locks) = through_a_proxy_without_hurry().await;
    let mut guards = Vec::new();
    for number in 0..LEASES {
        let options = LockOptions::new(Duration::from_secs(600));
        guards.push(locks.acquire_free(format!("k{number}"), options).await);
    }
    server.cli(&["SCRIPT", "FLUSH"]);
    let ends: Vec<_> = guards.iter().map(|guard| end(&guard.lease())).collect();
    let before = server.calls("eval");
    // A new connection renews all leases.
    proxy.reset();
    for (guard, end) in guards.iter().zip(ends) {
        renewed(&guard.lease(), end).await;
    }
    // More than one, since they may leave in more than one batch.
    let texts = server.calls("eval") - before;
    assert!((1..=5).contains(&texts), "{texts}");
}

#[tokio::test]
async fn flushed_data_cost_the_lease_and_tokens_still_grow() {
    let (server, _proxy, locks) = through_a_proxy().await;
    let guard = locks
        .acquire_free("k", LockOptions::new(Duration::from_secs(9)))
        .await;
    server.cli(&["FLUSHALL"]);
    assert_eq!(
        timeout(HANG, guard.lease().lost()).await.expect("noticed"),
        LeaseLost::TakenAway
    );
    assert!(server.get("lock:k").is_none(), "it is not recreated");
    let next = locks.acquire_free("k", options()).await;
    assert!(next.lease().fencing_token() > guard.lease().fencing_token());
}

#[tokio::test]
async fn a_late_renewal_never_shortens_a_lease() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    let guard = locks
        .acquire_free("k", LockOptions::new(Duration::from_secs(6)))
        .await;
    server.cli(&["PEXPIRE", "lock:k", "60000"]);
    let before = server.calls("evalsha");
    eventually!(HANG, "renewed" => server.calls("evalsha") >= before + 2);
    assert!(server.pttl("lock:k").expect("held") > Duration::from_secs(30));
    guard.release_held().await;
}

#[tokio::test]
async fn a_server_out_of_memory_refuses_new_locks_and_still_releases_them() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    let guard = locks
        .acquire_free("k", LockOptions::new(Duration::from_secs(6)))
        .await;
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let refused = locks
        .acquire("other", options().no_wait())
        .await
        .expect_err("out of memory");
    unavailable(&refused, "OOM");
    assert!(server.get("lock:other").is_none());
    renewed(&guard.lease(), end(&guard.lease())).await;
    guard.release_held().await;
    assert!(server.get("lock:k").is_none());
}

#[tokio::test]
async fn one_task_per_key_polls_however_many_wait() {
    let (server, proxy, locks) = through_a_proxy().await;
    server.cli(&["SET", "lock:k", "another's", "PX", "60000"]);
    let waiting: Vec<_> = (0..200)
        .map(|_| {
            let locks = locks.clone();
            tokio::spawn(async move { locks.acquire("k", patient()).await.map(drop) })
        })
        .collect();
    let started = Instant::now();
    eventually!(HANG, "polled a few times" => proxy.requests("EVALSHA") >= 5);
    // Five requests need at least four pauses of 25 ms, for any number of waiters.
    assert!(
        started.elapsed() >= Duration::from_millis(100),
        "{:?}",
        started.elapsed()
    );
    server.cli(&["DEL", "lock:k"]);
    for task in waiting {
        task.await.expect("no panic").expect("one after the other");
    }
    nothing_is_left(&server).await;
}

#[tokio::test]
async fn a_wait_that_ends_while_a_reply_is_due_ends_with_that_reply() {
    let (_server, proxy, locks) = through_a_proxy_without_hurry().await;
    // The delay is so long that the wait begins before the reply arrives, even on a busy machine.
    proxy.delay(Direction::Replies, SECOND * 3);
    let long = || LockOptions::new(HANG * 10);
    let holding = tokio::spawn({
        let locks = locks.clone();
        async move {
            locks
                .run("k", long(), |_| std::future::pending::<()>())
                .await
        }
    });
    eventually!(HANG, "the holder asks" => proxy.requests("SET") >= 1);
    // The wait is over before the reply to the holder's acquire arrives, and lasts until then.
    let started = Instant::now();
    let busy = timeout(
        HANG,
        locks.acquire("k", long().wait(Duration::from_millis(20))),
    )
    .await
    .expect("no hang");
    assert_fails!(busy, LockError::Busy { .. });
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(200), "{took:?}");
    holding.abort();
}

#[tokio::test]
async fn a_shutdown_waits_for_an_acquire_in_flight_and_releases_it() {
    let (server, proxy, locks) = through_a_proxy_without_hurry().await;
    // The delay is so long that the shutdown begins before the reply arrives, even on a busy machine.
    proxy.delay(Direction::Replies, Duration::from_secs(3));
    let acquiring = tokio::spawn({
        let locks = locks.clone();
        async move { locks.acquire("k", options()).await }
    });
    eventually!(HANG, "the server took it" => server.get("lock:k").is_some());
    locks.shutdown(HANG).await;
    assert_eq!(
        server.get("lock:k"),
        None,
        "released before the shutdown returns"
    );
    let refused = acquiring.await.expect("no panic");
    assert_fails!(refused, LockError::Unavailable { .. });
}

#[tokio::test]
async fn a_lease_that_is_held_across_a_reconnect_is_released_once() {
    let (server, proxy, locks) = through_a_proxy_without_hurry().await;
    let guard = locks.acquire_free("k", options()).await;
    proxy.reset();
    eventually!(HANG, "connected again" => guard.lease().verify().await.is_ok());
    proxy.clear_log();
    guard.release_held().await;
    locks.shutdown(HANG).await;
    let releases = proxy.requests("EVALSHA") + proxy.requests("EVAL");
    assert_eq!(releases, 1, "{:?}", proxy.log());
    assert!(server.get("lock:k").is_none());
}

#[tokio::test]
async fn a_server_that_became_a_replica_is_connected_to_again() {
    let (server, proxy, locks) = through_a_proxy().await;
    let guard = locks
        .acquire_free("k", LockOptions::new(Duration::from_secs(3)))
        .await;
    let before = proxy.connections();
    server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    eventually!(HANG, "connected again" => proxy.connections() > before);
    server.cli(&["REPLICAOF", "NO", "ONE"]);
    drop(guard);
    nothing_is_left(&server).await;
}

#[tokio::test]
async fn a_connection_may_take_longer_than_a_command() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let command = Duration::from_secs(6);
    let locks = LockManager::builder()
        .command_timeout(command)
        .connect_timeout(Duration::from_secs(20))
        .connect(&proxy.url())
        .await
        .expect("the server is up");
    // The server knows the scripts from now on.
    locks
        .acquire_free("k", options())
        .await
        .release_held()
        .await;
    // Opening a connection takes two round trips; each command alone is in time.
    proxy.delay(Direction::Replies, command / 2 + Duration::from_millis(250));
    proxy.reset();
    let guard = timeout(HANG, locks.acquire("k", options().wait(HANG)))
        .await
        .expect("no hang");
    guard.expect("by a new connection").release_held().await;
}

#[tokio::test]
async fn a_ttl_that_is_too_short_for_the_network_fails_only_its_own_request() {
    let (_server, proxy, locks) = through_a_proxy().await;
    proxy.delay(Direction::Replies, Duration::from_millis(120));
    let short = tokio::spawn({
        let locks = locks.clone();
        async move {
            locks
                .acquire("k", LockOptions::new(Duration::from_millis(200)))
                .await
        }
    });
    eventually!(HANG, "it asks" => proxy.requests("EVALSHA") >= 1);
    let long = timeout(HANG, locks.acquire("k", options()))
        .await
        .expect("no hang")
        .expect("its ttl is long enough");
    let short = short.await.expect("no panic");
    assert_fails!(short, LockError::Invalid { .. });
    long.release_held().await;
}

#[tokio::test]
async fn a_waiter_never_gets_a_lease_of_another_ttl() {
    let (server, proxy, locks) = through_a_proxy().await;
    for (first, second) in [(3600, 20), (20, 600)] {
        proxy.delay(Direction::Replies, Duration::from_millis(100));
        let requests = || proxy.requests("EVALSHA") + proxy.requests("SET");
        let asked = requests();
        let dropped = tokio::spawn({
            let locks = locks.clone();
            async move {
                locks
                    .acquire("k", LockOptions::new(Duration::from_secs(first)))
                    .await
            }
        });
        eventually(HANG, "it asks", async || requests() > asked).await;
        let waiting = tokio::spawn({
            let locks = locks.clone();
            let options = LockOptions::new(Duration::from_secs(second)).without_renewal();
            async move { locks.acquire("k", options).await }
        });
        tokio::task::yield_now().await;
        dropped.abort();
        let guard = granted(waiting).await;
        proxy.heal();
        let pttl = server.pttl("lock:k").expect("held");
        assert!(
            pttl <= Duration::from_secs(second) && pttl > Duration::from_secs(second) / 2,
            "{pttl:?} of {second} s"
        );
        assert!(guard.lease().remaining() <= pttl);
        assert!(guard.lease().remaining() > Duration::from_secs(second) / 2);
        guard.release_held().await;
    }
}

/// Returns the id of an entry in a stream as a reply.
fn id(id: &str) -> Reply {
    Reply::line(&format!("${}\r\n{id}", id.len()))
}

#[tokio::test]
async fn a_refused_release_is_a_loss_if_the_key_is_gone_afterwards() {
    let scripts = std::sync::atomic::AtomicU32::new(0);
    // A server that restarts without its data between an acquire and a release.
    let server = FakeServer::with_handshake(move |request| match request[0].as_str() {
        // The manager tries a lock when it connects.
        "EVALSHA" if request[3].contains("__check__") => Reply::line("-LOADING wait"),
        "EVALSHA" => match scripts.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
            0 => Reply::line("-LOADING Redis is loading the dataset in memory"),
            _ => Reply::line(":0"),
        },
        "XADD" => id("1795161375574-17"),
        "EXISTS" => Reply::line(":0"),
        _ => Reply::line("+OK"),
    });
    let locks = LockManager::connect(&server.url())
        .await
        .expect("it replies to PING");
    let guard = locks.acquire("k", options()).await.expect("granted");
    let released = timeout(HANG, guard.release()).await.expect("no hang");
    assert_eq!(reason_of_loss(released), LeaseLost::TakenAway);
}

#[tokio::test]
async fn a_refused_repeat_is_followed_by_a_release_of_what_the_first_request_took() {
    let asked = Arc::new(AtomicU64::new(0));
    let counted = asked.clone();
    let server = FakeServer::with_handshake(move |request| match request[0].as_str() {
        // The manager tries a lock when it connects.
        "EVALSHA" if request[3].contains("__check__") => Reply::line("-LOADING wait"),
        // The request is executed, and its reply is lost.
        "SET" => Reply::HangUp,
        "EVALSHA" => match counted.fetch_add(1, Ordering::SeqCst) {
            0 => Reply::line("-OOM command not allowed when used memory > 'maxmemory'."),
            _ => Reply::line(":1"),
        },
        _ => Reply::line("+OK"),
    });
    let locks = LockManager::connect(&server.url())
        .await
        .expect("it replies to PING");
    let refused = locks.try_acquire("k", options()).await;
    assert_fails!(refused, LockError::Unavailable { .. });
    eventually!(HANG, "it is released" => asked.load(Ordering::SeqCst) > 1);
}

#[tokio::test]
async fn leases_taken_on_a_new_connection_are_not_renewed_at_once() {
    const MANAGERS: usize = 20;
    let (server, proxy, _scripts_are_known) = through_a_proxy().await;
    let mut managers = Vec::new();
    for _ in 0..MANAGERS {
        managers.push(connect(&proxy.url()).await);
    }
    proxy.clear_log();
    let mut guards = Vec::new();
    for (number, locks) in managers.iter().enumerate() {
        // With this ttl, no renewal is due before the test is over.
        let long = LockOptions::new(HANG * 5);
        let guard = locks.acquire(format!("k{number}"), long).await;
        guards.push(guard.expect("free"));
    }
    let started = Instant::now();
    eventually!(HANG, "some time has passed" => started.elapsed() > Duration::from_millis(300));
    assert_eq!(proxy.requests("SET"), MANAGERS);
    assert_eq!(proxy.requests("EVALSHA"), 0, "only the acquires");
    // Leases are renewed after the connections break.
    server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    eventually!(HANG, "all are renewed" => proxy.requests("EVALSHA") >= MANAGERS);
    for guard in guards {
        guard.release_held().await;
    }
}

/// A proxy that discards replies and keeps the connection shifts all later replies, and those to plain commands look right.
#[tokio::test]
async fn shifted_replies_grant_nothing_and_the_connection_is_replaced() {
    for (user, parameters, is_own_client) in [
        ("", "", false),
        ("", "?protocol=2", false),
        ("plain", "", false),
        ("plain", "?protocol=2", false),
        ("", "", true),
        ("plain", "", true),
    ] {
        let server = RedisServer::start();
        server.add_user_without_scripts();
        let proxy = Proxy::start(server.port());
        let url = match user {
            "" => proxy.url(),
            _ => proxy.url_without_scripts(),
        };
        let other = connect(&server.url()).await;
        let held = other.acquire_free("held", patient()).await;
        let builder = LockManager::builder().command_timeout(COMMAND);
        let locks = if is_own_client {
            builder
                .client(redis::Client::open(url).expect("a url"))
                .await
        } else {
            builder.connect(&(url + parameters)).await
        };
        let locks = locks.expect("the server is up");
        let before = proxy.connections();
        proxy.lose(Direction::Replies, Frames::every(), AfterLoss::Continue);
        proxy.clear_log();
        let acquire = |key: String| {
            let locks = locks.clone();
            tokio::spawn(async move { locks.acquire(key, patient()).await })
        };
        let busy = acquire("held".to_owned());
        let free: Vec<_> = (0..5).map(|number| acquire(format!("k{number}"))).collect();
        // A session verifies its replies; the connection of a user's own client is replaced.
        eventually(HANG, "a reply is late", async || {
            proxy.requests("PING") > 0 || proxy.connections() > before
        })
        .await;
        proxy.heal();
        for free in free {
            let guard = timeout(HANG, free).await.expect("no hang");
            let guard = guard.expect("no panic");
            let guard = guard.unwrap_or_else(|error| {
                panic!("{user} {parameters}, own client {is_own_client}: {error:?}")
            });
            guard.lease().verify().await.expect("it is held");
            guard.release_held().await;
        }
        assert!(!busy.is_finished(), "{user} {parameters}: two holders");
        held.lease().verify().await.expect("held all the time");
        held.release_held().await;
        granted(busy).await.release_held().await;
        eventually(HANG, "another connection is used", async || {
            let guard = locks.acquire("k", patient()).await.expect("free");
            // Until a request times out, the shift is not known, and each reply arrives too late.
            let verified = guard.lease().verify().await;
            for result in [verified, guard.release().await] {
                let is_late = matches!(result, Err(LockError::Unavailable { .. }));
                assert!(is_late || result.is_ok(), "{user} {parameters}: {result:?}");
            }
            proxy.connections() > before
        })
        .await;
        nothing_is_left(&server).await;
    }
}
