//! Releases by one command of the server, on the servers that have one.

use std::{
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};

use lock_core::{LeaseLost, LockError, LockManager, LockOptions};
use lock_tests::{
    AcquireFree as _, After, Direction, HANG, Kind, Proxy, RedisServer, ReleaseHeld as _, Which,
    connect, eventually,
};

use crate::{
    between::Between,
    stopped_waiter::{QUEUE, Stopped},
};

/// The servers that have such a command, and its name.
const KINDS: [(Kind, &str); 2] = [(Kind::Redis86, "DELEX"), (Kind::Valkey9, "DELIFEQ")];
/// The longest time that the drop of the last manager may block.
const LAST_WAIT: Duration = Duration::from_millis(100);

fn start(kind: Kind) -> RedisServer {
    RedisServer::builder().kind(kind).start()
}

/// Options with a ttl so long that no lease is renewed while a test runs.
fn options() -> LockOptions {
    LockOptions::new(HANG * 10).wait(HANG)
}

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Holds back all commands that write, so that no reply to a release can come before its future is dropped.
fn hold_writes(server: &RedisServer) {
    let millis = HANG.as_millis().to_string();
    server.cli(&["CLIENT", "PAUSE", &millis, "WRITE"]);
}

#[tokio::test]
async fn a_queue_that_is_found_is_served_at_once() {
    for (kind, command) in KINDS {
        let server = start(kind);
        let locks = connect(&server.url()).await;
        let _waiter = Stopped::subscribed(&server);
        let guard = locks.acquire_free("k", options()).await;
        Stopped::join(&server);
        guard.release_held().await;
        Stopped::gets_it(&server).await;
        assert_eq!(server.calls(command), 1, "{kind:?}");
        assert!(server.queue(QUEUE).is_empty(), "{kind:?}");
    }
}

#[tokio::test]
async fn a_queue_is_served_though_the_task_that_releases_is_dropped() {
    for (kind, command) in KINDS {
        let server = start(kind);
        let locks = connect(&server.url()).await;
        let _waiter = Stopped::subscribed(&server);
        let guard = locks.acquire_free("k", options()).await;
        Stopped::join(&server);
        hold_writes(&server);
        let mut releasing = Box::pin(guard.release());
        assert!(poll(releasing.as_mut()).is_pending(), "a reply is due");
        drop(releasing);
        server.cli(&["CLIENT", "UNPAUSE"]);
        Stopped::gets_it(&server).await;
        assert_eq!(server.calls(command), 1, "{kind:?}");
    }
}

#[test]
fn a_queue_is_served_though_the_runtime_that_releases_ends() {
    for (kind, command) in KINDS {
        let server = start(kind);
        let _waiter = Stopped::subscribed(&server);
        let one = || {
            tokio::runtime::Builder::new_multi_thread()
                .enable_all()
                .build()
        };
        let (runtime, other) = (one().expect("memory"), one().expect("memory"));
        let locks = other.block_on(connect(&server.url()));
        runtime.block_on(async {
            let guard = locks.acquire_free("k", options()).await;
            Stopped::join(&server);
            hold_writes(&server);
            let mut releasing = Box::pin(guard.release());
            assert!(poll(releasing.as_mut()).is_pending(), "a reply is due");
            tokio::spawn(async move {
                std::future::pending::<()>().await;
                drop(releasing);
            });
        });
        runtime.shutdown_background();
        server.cli(&["CLIENT", "UNPAUSE"]);
        other.block_on(Stopped::gets_it(&server));
        assert_eq!(server.calls(command), 1, "{kind:?}");
    }
}

/// Two tasks of the process want the lock, so it asks for more fencing tokens. The reply tells that others wait.
#[tokio::test]
async fn where_waiters_are_known_the_script_releases_and_grants_in_one_step() {
    for (kind, command) in KINDS {
        let between = Between::greeted(kind);
        let (locks, server) = (between.connect().await, &between.server);
        let _waiter = Stopped::subscribed(server);
        let both = || {
            let mut both = [(); 2].map(|()| Box::pin(locks.acquire("k", options())));
            let mut polled = both.iter_mut().map(|one| poll(one.as_mut()));
            assert!(polled.all(|polled| polled.is_pending()), "a reply is due");
            both
        };
        // The server knows the script from then on.
        for one in both() {
            one.await.expect("free").release_held().await;
        }
        between.before("EVALSHA", Stopped::join);
        let [one, other] = both();
        let guard = one.await.expect("free");
        // The request for tokens is ahead of this one.
        guard.lease().verify().await.expect("held");
        assert_eq!(server.queue(QUEUE).len(), 1, "{kind:?}");
        drop(other);
        let before = server.calls(command);
        guard.release_held().await;
        assert!(Stopped::has_it(server), "{kind:?}");
        assert_eq!(server.calls(command), before, "{kind:?}");
    }
}

/// The entry comes when the key is about to be deleted, so the queue must be looked at behind that.
#[tokio::test]
async fn a_waiter_that_comes_just_before_the_release_is_served() {
    for (kind, command) in KINDS {
        let between = Between::greeted(kind);
        let locks = between.connect().await;
        let _waiter = Stopped::subscribed(&between.server);
        let guard = locks.acquire_free("k", options()).await;
        between.before(command, Stopped::join);
        guard.release_held().await;
        Stopped::gets_it(&between.server).await;
    }
}

/// The lock is free for a moment, and a newcomer tries to take it.
#[tokio::test]
async fn no_newcomer_overtakes_the_waiters_behind_a_release() {
    for (kind, command) in KINDS {
        let between = Between::greeted(kind);
        let (locks, newcomer) = (
            between.connect().await,
            connect(&between.server.url()).await,
        );
        let _waiter = Stopped::subscribed(&between.server);
        let guard = locks.acquire_free("k", options()).await;
        Stopped::join(&between.server);
        let runtime = tokio::runtime::Handle::current();
        let tried = Arc::new(Mutex::new(None));
        let result = tried.clone();
        between.before("EVALSHA", move |server| {
            assert_eq!(server.get("lock:k"), None, "{command}");
            let trying = runtime.spawn(async move {
                let tried = newcomer.acquire("k", options().no_wait()).await;
                *result.lock().expect("no panic") = Some(tried.map(drop));
            });
            let started = Instant::now();
            while !trying.is_finished() {
                assert!(started.elapsed() < HANG, "it does not wait");
                thread::sleep(Duration::from_millis(5));
            }
        });
        guard.release_held().await;
        Stopped::gets_it(&between.server).await;
        eventually(HANG, "it is refused", async || {
            let tried = tried.lock().expect("no panic").take();
            matches!(tried, Some(Err(LockError::Busy { .. })))
        })
        .await;
    }
}

/// The script that serves the queue takes its time.
#[tokio::test]
async fn a_shutdown_and_the_drop_of_the_last_manager_wait_until_the_queue_is_served() {
    for (kind, _) in KINDS {
        for is_dropped in [false, true] {
            let between = Between::greeted(kind);
            let locks = between.connect().await;
            let _waiter = Stopped::subscribed(&between.server);
            let guard = locks.acquire_free("k", options()).await;
            Stopped::join(&between.server);
            between.before("EVALSHA", |_| thread::sleep(Duration::from_millis(20)));
            guard.release_held().await;
            let started = Instant::now();
            if is_dropped {
                drop(locks);
            } else {
                locks.shutdown(HANG).await;
            }
            let is_late = is_dropped && started.elapsed() >= LAST_WAIT;
            let is_served = is_late || Stopped::has_it(&between.server);
            assert!(is_served, "{kind:?}, {is_dropped}");
        }
    }
}

#[tokio::test]
async fn a_lock_that_is_gone_or_anothers_is_lost_whatever_the_key_holds() {
    let others: [&[&[&str]]; 3] = [
        &[&["DEL", "lock:k"]],
        &[&["SET", "lock:k", "another's", "PX", "600000"]],
        &[&["DEL", "lock:k"], &["RPUSH", "lock:k", "no lock"]],
    ];
    let kinds = KINDS.map(|(kind, _)| kind);
    for kind in kinds.into_iter().chain([Kind::Distribution]) {
        let server = start(kind);
        let locks = connect(&server.url()).await;
        let _waiter = Stopped::subscribed(&server);
        for others in others {
            let guard = locks.acquire_free("k", options()).await;
            for command in others {
                server.cli(command);
            }
            let dump = server.cli(&["DUMP", "lock:k"]);
            let reason = match guard.release().await {
                Err(LockError::Lost { reason, .. }) => reason,
                odd => panic!("{kind:?}, {others:?}: {odd:?}"),
            };
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

#[tokio::test]
async fn a_user_without_the_right_releases_by_the_script_and_nothing_is_logged() {
    for (kind, command) in KINDS {
        let server = start(kind);
        let forbidden = format!("-{}", command.to_lowercase());
        let rights = ["ACL", "SETUSER", "u", "on", ">word", "~*", "&*", "+@all"];
        server.cli(&[&rights[..], &[&forbidden]].concat());
        let locks = connect(&server.url_as("u", "word")).await;
        for _ in 0..10 {
            let guard = locks.acquire_free("k", options()).await;
            guard.release_held().await;
        }
        assert_eq!(server.keys("lock:*"), [""; 0], "{kind:?}");
        let stats = server.info("commandstats").to_uppercase();
        let line = stats.lines().find(|line| line.contains(command));
        let refused = line.and_then(|line| line.split_once("REJECTED_CALLS=")?.1.split(',').next());
        let refused: u32 = refused.expect("it was tried").parse().expect("a number");
        // Once on the connection of the manager's thread, and once on that of this runtime.
        assert!((1..=2).contains(&refused), "{kind:?}: {line:?}");
        let health = locks.check().await.expect("it has all that it needs");
        assert_eq!(health.warnings, [], "{kind:?}");
    }
}

#[tokio::test]
async fn a_release_without_a_reply_is_repeated_by_the_script() {
    for (kind, command) in KINDS {
        let server = start(kind);
        let proxy = Proxy::start(server.port());
        let locks = connect(&proxy.url()).await;
        let _waiter = Stopped::subscribed(&server);
        let guard = locks.acquire_free("k", options()).await;
        Stopped::join(&server);
        proxy.lose(Direction::Replies, Which::of(command), After::Reset);
        guard.release_held().await;
        assert!(Stopped::has_it(&server), "{kind:?}");
        assert_eq!(proxy.requests(command), 1, "{kind:?}");
    }
}

/// Servers shrink their table of keys when it gets emptier. Redis 8.6.2 has a command that compares and loses another key then.
#[tokio::test]
async fn many_locks_are_released_without_a_loss_of_another_key() {
    for (kind, command) in KINDS {
        let server = start(kind);
        let locks: LockManager = connect(&server.url()).await;
        for round in 0..6 {
            let mut held = Vec::new();
            for number in 0..48 + round {
                held.push(locks.acquire_free(&*format!("k{number}"), options()).await);
            }
            while let Some(guard) = held.pop() {
                guard.release_held().await;
                let left = server.keys("lock:*").len();
                assert_eq!(left, held.len(), "{kind:?}, round {round}");
            }
        }
        assert_eq!(server.calls(command), 6 * 48 + 15, "{kind:?}");
    }
}
