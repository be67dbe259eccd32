//! Bodies that run once: the results of callers, failures, and the keys that are left on the server.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use lock_core::{LeaseLost, LockError, LockManager, LockOptions, OnceOptions, Repeat};
use lock_tests::{
    AcquireFree as _, AfterLoss, Direction, Frames, HANG, Kind, Proxy, RedisServer,
    ReleaseHeld as _, SECOND, assert_fails, connect, eventually, invalid, patient, reason_of_loss,
};
use tokio::task::JoinSet;

use crate::stopped_waiter::QUEUE;

const RESULT: &str = "__lock_core__:result:lock:k";

type Run = Result<String, String>;

fn once() -> OnceOptions {
    OnceOptions::keep(SECOND * 60).ttl(SECOND * 10).wait(HANG)
}

/// Counts the bodies that ran. Each body returns its number.
#[derive(Clone, Default)]
struct Bodies(Arc<AtomicUsize>);

impl Bodies {
    fn count(&self) -> usize {
        self.0.load(SeqCst)
    }

    fn next(&self) -> String {
        (self.0.fetch_add(1, SeqCst) + 1).to_string()
    }

    async fn run(&self, locks: &LockManager, options: OnceOptions) -> Result<Run, LockError> {
        self.run_for(locks, options, Duration::ZERO).await
    }

    /// Runs a body that takes some time.
    async fn run_for(
        &self,
        locks: &LockManager,
        options: OnceOptions,
        takes: Duration,
    ) -> Result<Run, LockError> {
        let body = async |_| {
            tokio::time::sleep(takes).await;
            Ok(self.next())
        };
        locks.run_once("k", options, body).await
    }
}

/// Returns the value of a run that succeeded.
fn value(run: Result<Run, LockError>) -> String {
    run.expect("no failed lock").expect("no failed body")
}

async fn only_the_result_is_left(server: &RedisServer, result: &str) {
    eventually(HANG, "only the clock and the result are left", async || {
        let mut keys = server.keys("*");
        keys.sort();
        keys == ["__lock_core__:clock", result]
    })
    .await;
}

#[tokio::test]
async fn callers_in_three_processes_get_the_result_of_one_body() {
    for kind in Kind::tested() {
        let server = RedisServer::builder().kind(kind).start();
        let bodies = Bodies::default();
        let mut callers = JoinSet::new();
        for _ in 0..3 {
            let locks = connect(&server.url()).await;
            for _ in 0..20 {
                let (locks, bodies) = (locks.clone(), bodies.clone());
                let takes = Duration::from_millis(50);
                callers.spawn(async move { bodies.run_for(&locks, once(), takes).await });
            }
        }
        for result in callers.join_all().await {
            assert_eq!(value(result), "1", "{kind:?}");
        }
        assert_eq!(bodies.count(), 1);
        only_the_result_is_left(&server, RESULT).await;
        let left = server.pttl(RESULT).expect("it expires");
        assert!(left <= SECOND * 60, "{left:?}");
    }
}

#[tokio::test]
async fn a_repeat_takes_one_command_and_leaves_no_lock() {
    let server = RedisServer::start();
    let (locks, bodies) = (connect(&server.url()).await, Bodies::default());
    value(bodies.run(&locks, once()).await);
    let before = (server.calls("evalsha"), server.calls("set"));
    for _ in 0..10 {
        assert_eq!(value(bodies.run(&locks, once().no_wait()).await), "1");
    }
    // A request answers only callers that joined before it was sent, so the second caller sends a request of its own.
    let repeat = || bodies.run(&locks, once().no_wait());
    let (one, other) = tokio::join!(repeat(), repeat());
    assert_eq!((value(one), value(other)), ("1".to_owned(), "1".to_owned()));
    let after = (server.calls("evalsha"), server.calls("set"));
    assert_eq!(after, (before.0 + 12, before.1));
    only_the_result_is_left(&server, RESULT).await;
}

#[tokio::test]
async fn all_waiting_processes_get_the_result_by_message() {
    let server = RedisServer::start();
    let bodies = Bodies::default();
    let holder = connect(&server.url()).await;
    let guard = holder.acquire_free("k", patient()).await;
    let mut waiters = JoinSet::new();
    // More than one call of the script notifies.
    for _ in 0..70 {
        let (locks, bodies) = (connect(&server.url()).await, bodies.clone());
        waiters.spawn(async move { bodies.run(&locks, once()).await });
    }
    eventually!(HANG, "all wait" => server.queue(QUEUE).len() == 70);
    let before = server.calls("publish");
    guard.release_held().await;
    for result in waiters.join_all().await {
        assert_eq!(value(result), "1");
    }
    // On a busy machine, some find the result by a check of their place.
    let messages = server.calls("publish") - before;
    assert!(messages >= 35, "{messages}");
    only_the_result_is_left(&server, RESULT).await;
}

#[tokio::test]
async fn after_a_failure_or_a_panic_or_a_dropped_caller_the_next_one_runs() {
    let server = RedisServer::start();
    let [locks, other] = [connect(&server.url()).await, connect(&server.url()).await];
    let bodies = Bodies::default();
    let fails = async |_| Err("no".to_owned());
    let failed: Result<Run, _> = locks.run_once("k", once(), fails).await;
    assert_eq!(failed.expect("it ran"), Err("no".to_owned()));
    let panics = {
        let locks = locks.clone();
        tokio::spawn(async move {
            let body = async |_| -> Run { panic!("of the test") };
            locks.run_once("k", once(), body).await
        })
    };
    assert!(panics.await.is_err());
    let (began, dropped) = tokio::sync::oneshot::channel();
    let hangs = {
        let locks = locks.clone();
        tokio::spawn(async move {
            let body = async |_| -> Run {
                began.send(()).expect("the test waits");
                std::future::pending().await
            };
            locks.run_once("k", once(), body).await
        })
    };
    dropped.await.expect("it runs");
    let waits = {
        let (other, bodies) = (other.clone(), bodies.clone());
        tokio::spawn(async move { bodies.run(&other, once()).await })
    };
    eventually!(HANG, "it waits" => !server.queue(QUEUE).is_empty());
    hangs.abort();
    assert_eq!(value(waits.await.expect("no panic")), "1");
    assert_eq!(value(bodies.run(&locks, once()).await), "1");
    only_the_result_is_left(&server, RESULT).await;
}

#[tokio::test]
async fn another_request_with_the_key_is_refused_and_a_repeat_is_not() {
    let server = RedisServer::start();
    let [locks, other] = [connect(&server.url()).await, connect(&server.url()).await];
    let bodies = Bodies::default();
    let about = |amount: u32| once().fingerprint(&("order 7", amount));
    assert_eq!(value(bodies.run(&locks, about(5)).await), "1");
    for locks in [&locks, &other] {
        assert_eq!(value(bodies.run(locks, about(5)).await), "1");
        assert_eq!(
            value(bodies.run(locks, once()).await),
            "1",
            "it has no fingerprint"
        );
        let refused = bodies.run(locks, about(6)).await;
        let is_refused = matches!(
            refused,
            Err(LockError::Repeated {
                reason: Repeat::OtherRequest,
                ..
            })
        );
        assert!(is_refused, "{refused:?}");
    }
    assert_eq!(bodies.count(), 1);
}

#[tokio::test]
async fn a_value_of_64_kib_is_kept_and_a_larger_one_leaves_a_mark() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    // The quotation marks of JSON count.
    for (length, is_kept) in [(65_534, true), (65_535, false)] {
        let key = format!("of {length}");
        let run = async |mark: &str| {
            let body = async |_| Ok::<_, String>(mark.repeat(length));
            locks.run_once(&*key, once(), body).await
        };
        assert_eq!(value(run("a").await), "a".repeat(length), "the runner");
        match run("b").await {
            Ok(Ok(kept)) => assert!(is_kept && kept == "a".repeat(length)),
            Err(LockError::Repeated {
                reason: Repeat::NotKept,
                ..
            }) => assert!(!is_kept),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn after_a_result_has_expired_or_was_forgotten_or_evicted_the_next_caller_runs() {
    let server = RedisServer::start();
    let (locks, bodies) = (connect(&server.url()).await, Bodies::default());
    let briefly = OnceOptions::keep(Duration::from_millis(200));
    assert_eq!(value(bodies.run(&locks, briefly).await), "1");
    eventually!(HANG, "it has expired" => server.get(RESULT).is_none());
    assert_eq!(value(bodies.run(&locks, once()).await), "2");
    locks.forget("k").await.expect("the server is up");
    assert_eq!(value(bodies.run(&locks, once()).await), "3");
    server.cli(&["DEL", RESULT]);
    assert_eq!(value(bodies.run(&locks, once()).await), "4");
    assert_eq!(value(bodies.run(&locks, once()).await), "4");
}

#[tokio::test]
async fn a_run_and_a_plain_lock_of_a_key_exclude_each_other() {
    let server = RedisServer::start();
    let [locks, other] = [connect(&server.url()).await, connect(&server.url()).await];
    let bodies = Bodies::default();
    for [holder, caller] in [[&locks, &other], [&locks, &locks]] {
        let guard = holder.acquire_free("k", patient()).await;
        let refused = bodies.run(caller, once().no_wait()).await;
        assert_fails!(refused, LockError::Busy { .. });
        let run = {
            let (caller, bodies) = (caller.clone(), bodies.clone());
            tokio::spawn(async move { bodies.run(&caller, once()).await })
        };
        // The holder knows of tasks of its own process, and of entries in the server's queue.
        eventually(HANG, "it waits", async || {
            let seen = holder.inspect("k").await.expect("a reply");
            seen.is_some_and(|info| info.waiters == 1)
        })
        .await;
        assert_eq!(bodies.count(), 0);
        guard.release_held().await;
        assert_eq!(value(run.await.expect("no panic")), "1");
        locks.forget("k").await.expect("the server is up");
        bodies.0.store(0, SeqCst);
    }
    let excluded = async |_| -> Run {
        let refused = other.try_acquire("k", LockOptions::default()).await;
        assert!(matches!(refused, Ok(None)), "{refused:?}");
        Ok("alone".to_owned())
    };
    assert_eq!(value(locks.run_once("k", once(), excluded).await), "alone");
    // A result does not block a plain lock, and is returned while the lock is held.
    for holder in [&locks, &other] {
        let guard = holder.acquire_free("k", patient()).await;
        assert_eq!(value(bodies.run(&locks, once()).await), "alone");
        assert_eq!(value(bodies.run(&locks, once().no_wait()).await), "alone");
        guard.release_held().await;
    }
}

#[tokio::test]
async fn a_lost_request_or_reply_changes_nothing() {
    for (nth, message) in ["acquire", "release"].into_iter().enumerate() {
        for direction in [Direction::Requests, Direction::Replies] {
            for after in [AfterLoss::Reset, AfterLoss::Silence] {
                let server = RedisServer::start();
                let proxy = Proxy::start(server.port());
                let (locks, other) = (connect(&proxy.url()).await, connect(&server.url()).await);
                let bodies = Bodies::default();
                // With this ttl, no lock that is left would expire during the test.
                let long = || once().ttl(HANG * 10);
                let body = async |_| {
                    if message == "release" {
                        proxy.lose(direction, Frames::nth_of(1, "EVALSHA"), after);
                    }
                    Ok(bodies.next())
                };
                if message == "acquire" {
                    proxy.lose(direction, Frames::nth_of(1, "EVALSHA"), after);
                }
                let first: Result<Run, _> = locks.run_once("k", long(), body).await;
                assert_eq!(value(first), "1", "{nth} {direction:?} {after:?}");
                assert_eq!(value(bodies.run(&other, long()).await), "1", "{message}");
                proxy.heal();
                assert_eq!(value(bodies.run(&locks, long()).await), "1", "{message}");
                only_the_result_is_left(&server, RESULT).await;
            }
        }
    }
}

#[tokio::test]
async fn a_full_server_stores_no_result_and_the_lock_is_free_after_three_tries() {
    for kind in Kind::tested() {
        let server = RedisServer::builder().kind(kind).start();
        let locks = connect(&server.url()).await;
        let bodies = Bodies::default();
        let fill = || server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
        let body = async |_| {
            fill();
            Ok(bodies.next())
        };
        let before = server.calls("evalsha");
        let first: Result<Run, _> = locks.run_once("k", once(), body).await;
        assert_eq!(value(first), "1", "the runner has its value: {kind:?}");
        eventually!(HANG, "the lock is free" => server.get("lock:k").is_none());
        assert!(server.get(RESULT).is_none());
        let scripts = server.calls("evalsha") - before;
        assert!((5..=6).contains(&scripts), "{scripts}: {kind:?}");
        server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
        assert_eq!(value(bodies.run(&locks, once()).await), "2", "{kind:?}");
    }
}

#[tokio::test]
async fn a_result_of_another_type_is_an_error_and_not_run_again() {
    let server = RedisServer::start();
    let (locks, bodies) = (connect(&server.url()).await, Bodies::default());
    value(bodies.run(&locks, once()).await);
    let body = async |_| -> Result<u64, String> { panic!("it must not run") };
    let refused = locks.run_once("k", once(), body).await;
    invalid(&refused.expect_err("refused"), "`forget`");
    server.cli(&["SET", RESULT, "not ours"]);
    let refused = bodies.run(&locks, once()).await;
    assert_fails!(refused, LockError::Invalid { .. });
    server.cli(&["DEL", RESULT]);
    server.cli(&["LPUSH", RESULT, "a list"]);
    let refused = bodies.run(&locks, once()).await;
    assert!(refused.is_err(), "{refused:?}");
    assert_eq!(bodies.count(), 1);
}

#[tokio::test]
async fn a_forced_release_ends_a_run_and_keeps_an_earlier_result() {
    let server = RedisServer::start();
    let [locks, operator] = [connect(&server.url()).await, connect(&server.url()).await];
    let bodies = Bodies::default();
    let options = once().ttl(SECOND * 6);
    let body = async |_| -> Run {
        operator.force_release("k").await.expect("the server is up");
        std::future::pending().await
    };
    let lost = locks.run_once("k", options, body).await;
    assert_eq!(reason_of_loss(lost), LeaseLost::TakenAway);
    assert_eq!(value(bodies.run(&operator, once()).await), "1");
    operator.force_release("k").await.expect("the server is up");
    assert_eq!(value(bodies.run(&locks, once()).await), "1");
}
