//! Releases of a lock of which this process knows no waiter.

use lock_core::{LeaseLost, LockGuard, LockManager};
use lock_tests::{
    AcquireFree as _, AfterLoss, Direction, Frames, HANG, Kind, Proxy, RedisServer,
    ReleaseHeld as _, Request, connect, eventually, options, reason_of_loss,
};
use tokio::{task::JoinHandle, time::timeout};

use crate::stopped_waiter::{QUEUE, Stopped};

/// A holder behind a proxy, and a waiter that the holder's process does not know of.
struct Unseen {
    server: RedisServer,
    proxy: Proxy,
    guard: LockGuard,
    waiting: JoinHandle<LockGuard>,
    /// Keeps the connections open.
    _managers: [LockManager; 2],
}

impl Unseen {
    async fn waiter() -> Self {
        let server = RedisServer::start();
        let proxy = Proxy::start(server.port());
        let (ours, others) = (connect(&proxy.url()).await, connect(&server.url()).await);
        let guard = ours.acquire_free("k", options()).await;
        let waiter = others.clone();
        let waiting = tokio::spawn(async move {
            let acquired = timeout(HANG, waiter.acquire("k", options().wait(HANG)));
            acquired.await.expect("no hang").expect("it is handed over")
        });
        eventually!(HANG, "it is in the queue" => server.queue(QUEUE).len() == 1);
        proxy.clear_log();
        Self {
            server,
            proxy,
            guard,
            waiting,
            _managers: [ours, others],
        }
    }
}

fn commands(proxy: &Proxy) -> Vec<String> {
    proxy.log().iter().map(Request::command).collect()
}

#[tokio::test]
async fn an_unknown_waiter_gets_the_lock_by_a_second_script() {
    let unseen = Unseen::waiter().await;
    unseen.guard.release_held().await;
    assert_eq!(commands(&unseen.proxy), ["EVALSHA", "EVALSHA"]);
    let guard = unseen.waiting.await.expect("no panic");
    assert!(unseen.server.queue(QUEUE).is_empty());
    guard.release_held().await;
}

/// Otherwise a client that does not queue could take the lock in between.
#[tokio::test]
async fn a_lock_with_a_waiter_stays_held_until_it_is_handed_over() {
    let unseen = Unseen::waiter().await;
    let ours = unseen.server.get("lock:k").expect("it is held");
    let second = Frames::nth_of(2, "EVALSHA");
    unseen
        .proxy
        .lose(Direction::Requests, second, AfterLoss::Silence);
    let releasing = tokio::spawn(unseen.guard.release());
    eventually!(HANG, "the second script is sent" => unseen.proxy.requests("EVALSHA") >= 2);
    assert_eq!(unseen.server.get("lock:k"), Some(ours));
    unseen.proxy.heal();
    let guard = unseen.waiting.await.expect("no panic");
    guard.release_held().await;
    let released = timeout(HANG, releasing).await.expect("no hang");
    released.expect("no panic").expect("it was held");
}

#[tokio::test]
async fn a_lock_that_is_gone_or_replaced_is_lost_and_its_key_left_alone() {
    let others: [&[&[&str]]; 3] = [
        &[&["DEL", "lock:k"]],
        &[&["SET", "lock:k", "another's", "PX", "600000"]],
        &[&["DEL", "lock:k"], &["RPUSH", "lock:k", "not a lock"]],
    ];
    for kind in Kind::tested() {
        let server = RedisServer::builder().kind(kind).start();
        let locks = connect(&server.url()).await;
        let _waiter = Stopped::subscribed(&server);
        for others in others {
            let guard = locks.acquire_free("k", options()).await;
            for command in others {
                server.cli(command);
            }
            let dump = server.cli(&["DUMP", "lock:k"]);
            let reason = reason_of_loss(guard.release().await);
            assert_eq!(reason, LeaseLost::TakenAway, "{kind:?}, {others:?}");
            assert_eq!(server.cli(&["DUMP", "lock:k"]), dump, "{kind:?}");
            server.cli(&["DEL", "lock:k"]);
        }
        // A lock that is gone, with a waiter.
        let guard = locks.acquire_free("k", options()).await;
        Stopped::join(&server);
        server.cli(&["DEL", "lock:k"]);
        guard.release().await.expect_err("it is gone");
        assert!(Stopped::has_it(&server), "{kind:?}");
    }
}
