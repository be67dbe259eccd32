//! The stream that fencing tokens come from, on each kind of server: what may become of it, and of a lock that is taken meanwhile.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use lock_core::{LockError, LockManager, LockOptions};
use lock_tests::{
    AcquireFree as _, HANG, Kind, RedisServer, ReleaseHeld as _, ShiftedClock, connect, eventually,
    patient,
};

use crate::between::Between;

const CLOCK: &str = "__lock_core__:clock";
const HOUR: Duration = Duration::from_secs(3600);
/// How many tokens a millisecond has.
const PER_MILLI: u64 = 2048;

/// Takes the lock and releases it, and retries until that works.
async fn token(locks: &LockManager) -> u64 {
    let guard = locks.acquire_free("k", patient()).await;
    let token = guard.lease().fencing_token();
    guard.release_held().await;
    token.into()
}

/// A manager of a user with scripts, and one without.
async fn both(server: &RedisServer) -> [LockManager; 2] {
    server.add_user_without_scripts();
    let without = connect(&server.url_as("plain", "word")).await;
    [connect(&server.url()).await, without]
}

async fn nothing_is_left(server: &RedisServer) {
    eventually!(HANG, "no lock is left" => server.keys("lock:*").is_empty());
}

#[tokio::test]
async fn a_free_lock_takes_three_plain_commands_and_its_release_one_script() {
    for kind in Kind::tested() {
        let server = RedisServer::builder().kind(kind).start();
        let socket = format!("redis+unix://{}", server.unix_socket().display());
        for url in [server.url(), socket] {
            let locks = connect(&url).await;
            let names = ["evalsha", "set", "xadd", "exists"];
            let before = names.map(|name| server.calls(name));
            let mut last = 0;
            for _ in 0..10 {
                let next = token(&locks).await;
                assert!(next > last, "{next} after {last}");
                last = next;
            }
            let after = names.map(|name| server.calls(name));
            let calls: Vec<_> = after.iter().zip(before).map(|(a, b)| a - b).collect();
            // The script looks at the queue, too.
            assert_eq!(calls, [10, 10, 10, 20], "{kind:?}");
        }
        assert_eq!(server.keys("*"), [CLOCK], "{kind:?}");
        let length: u64 = redis::from_redis_value(server.cli(&["XLEN", CLOCK])).expect("a length");
        assert_eq!(length, 0, "{kind:?}");
    }
}

#[tokio::test]
async fn a_free_lock_takes_one_round_trip_without_scripts() {
    for kind in Kind::tested() {
        let server = RedisServer::builder().kind(kind).start();
        let [_, locks] = both(&server).await;
        let guard = locks.acquire_free("k", patient()).await;
        guard.release_held().await;
        let before = ["set", "xadd", "get"].map(|name| server.calls(name));
        let guard = locks.acquire_free("k", patient()).await;
        let after = ["set", "xadd", "get"].map(|name| server.calls(name));
        let calls: Vec<_> = after.iter().zip(before).map(|(a, b)| a - b).collect();
        assert_eq!(calls, [1, 1, 0], "{kind:?}");
        guard.release_held().await;
    }
}

#[tokio::test]
async fn tokens_grow_when_the_clock_is_set_back_on_each_kind_of_server() {
    for kind in Kind::tested() {
        let clock = ShiftedClock::new();
        let server = RedisServer::builder().kind(kind).clock(&clock).start();
        let [one, other] = both(&server).await;
        let mut last = token(&one).await;
        clock.set_back(HOUR);
        // A manager that knows no token is among them.
        for locks in [&one, &other, &connect(&server.url()).await, &one] {
            let next = token(locks).await;
            assert!(next > last, "{kind:?}: {next} after {last}");
            last = next;
        }
    }
}

/// The server's clock is an hour behind after the restart, so only the file tells what was given out before.
#[tokio::test]
async fn tokens_grow_across_a_restart_from_a_file_though_the_clock_was_set_back() {
    for kind in Kind::tested() {
        let clock = ShiftedClock::new();
        let server = RedisServer::builder().kind(kind).clock(&clock);
        let server = server.setting("appendonly", "yes");
        let server = server.setting("appendfsync", "always").start();
        let mut last = token(&connect(&server.url()).await).await;
        for _ in 0..2 {
            clock.set_back(HOUR);
            server.kill9();
            server.restart();
            let next = token(&connect(&server.url()).await).await;
            assert!(next > last, "{kind:?}: {next} after {last}");
            last = next;
            server.cli(&["BGREWRITEAOF"]);
        }
    }
}

#[tokio::test]
async fn a_manager_that_knows_a_token_gets_a_larger_one_though_the_clock_was_deleted() {
    for kind in Kind::tested() {
        let server = RedisServer::builder().kind(kind).start();
        for locks in both(&server).await {
            let mut last = token(&locks).await;
            for _ in 0..20 {
                server.cli(&["DEL", CLOCK]);
                let next = token(&locks).await;
                assert!(next > last, "{kind:?}: {next} after {last}");
                last = next;
            }
        }
    }
}

/// What the reliability page admits: only a process that knows a token can tell.
#[tokio::test]
async fn a_clock_that_is_deleted_and_made_anew_in_the_same_millisecond_may_give_the_same_number() {
    const TWICE: &str = "local function take()
          return redis.call('XADD', KEYS[1], 'MAXLEN', '0', '*', '', '')
        end
        take()
        local first = take()
        redis.call('DEL', KEYS[1])
        return {first, take()}";
    for kind in Kind::tested() {
        let server = RedisServer::builder().kind(kind).start();
        let mut is_smaller = false;
        // A millisecond may begin between two commands of a script of an old server.
        for _ in 0..20 {
            let ids = server.cli(&["EVAL", TWICE, "1", CLOCK]);
            let [first, second]: [String; 2] = redis::from_redis_value(ids).expect("two ids");
            let parts = |id: &str| {
                let (millis, sequence) = id.split_once('-').expect("an id");
                let number = |text: &str| text.parse::<u64>().expect("a number");
                (number(millis), number(sequence))
            };
            is_smaller |= parts(&second) < parts(&first);
            server.cli(&["DEL", CLOCK]);
        }
        assert!(is_smaller, "{kind:?}");
    }
}

#[tokio::test]
async fn a_clock_of_another_type_costs_the_lock_and_leaves_none() {
    for kind in Kind::tested() {
        let server = RedisServer::builder().kind(kind).start();
        for locks in both(&server).await {
            server.cli(&["DEL", CLOCK]);
            server.cli(&["SET", CLOCK, "7"]);
            let refused = locks.acquire("k", patient().wait(Duration::from_millis(300)));
            let refused = refused.await.expect_err("no token");
            let LockError::Unavailable { source, .. } = &refused else {
                panic!("{kind:?}: {refused:?}");
            };
            let advice = format!("Run: DEL {CLOCK}");
            assert!(source.to_string().ends_with(&advice), "{source}");
            nothing_is_left(&server).await;
            server.cli(&["DEL", CLOCK]);
            token(&locks).await;
        }
    }
}

/// The clock was moved far ahead by hand.
#[tokio::test]
async fn a_clock_beyond_all_tokens_costs_the_lock_and_leaves_none() {
    let server = RedisServer::start();
    let largest = u64::MAX.to_string();
    for id in [
        "4398046511104-0".to_owned(),
        format!("{largest}-7"),
        format!("{largest}-{largest}"),
    ] {
        for locks in both(&server).await {
            server.cli(&["DEL", CLOCK]);
            server.cli(&["XADD", CLOCK, "MAXLEN", "0", &id, "", ""]);
            let refused = locks.acquire("k", patient().wait(Duration::from_millis(300)));
            let refused = refused.await.expect_err("no token");
            let shown = format!("{refused:?}");
            assert!(
                shown.contains(&format!("Run: DEL {CLOCK}")),
                "{id}: {shown}"
            );
            nothing_is_left(&server).await;
            server.cli(&["DEL", CLOCK]);
            token(&locks).await;
        }
    }
}

#[tokio::test]
async fn a_right_to_the_clock_that_is_taken_away_costs_the_lock_and_leaves_none() {
    for kind in Kind::tested() {
        let server = RedisServer::builder().kind(kind).start();
        server.cli(&["ACL", "SETUSER", "u", "on", ">word", "~*", "&*", "+@all"]);
        let locks = connect(&server.url_as("u", "word")).await;
        token(&locks).await;
        server.cli(&["ACL", "SETUSER", "u", "-xadd"]);
        let refused = locks.acquire("k", patient().wait(Duration::from_millis(300)));
        let refused = refused.await.expect_err("no token");
        assert!(
            matches!(refused, LockError::Unavailable { .. }),
            "{kind:?}: {refused:?}"
        );
        nothing_is_left(&server).await;
        let refused = LockManager::connect(&server.url_as("u", "word")).await;
        let refused = refused.expect_err("it lacks a right").to_string();
        assert!(refused.contains("+xadd"), "{kind:?}: {refused}");
        server.cli(&["ACL", "SETUSER", "u", "+xadd"]);
        token(&locks).await;
    }
}

#[tokio::test]
async fn a_millisecond_whose_numbers_are_used_up_is_left_for_the_next_one() {
    for kind in Kind::tested() {
        let server = RedisServer::builder().kind(kind).start();
        for locks in both(&server).await {
            // A minute ahead of the server's time, as after a step back of its clock.
            let millis = token(&locks).await / PER_MILLI + 60_000;
            let last = millis * PER_MILLI + PER_MILLI - 2;
            server.set_fencing_clock(CLOCK, last);
            assert_eq!(token(&locks).await, last + 1, "{kind:?}");
            // The next id has the number 2048, which is no token.
            assert_eq!(token(&locks).await, last + 2, "{kind:?}");
            assert_eq!((last + 2) % PER_MILLI, 0);
            // So many were used up that their numbers, added up, would be a minute. The server's time would fall behind them.
            let id = format!("{}-{}", millis + 60_000, 60_000 * PER_MILLI);
            server.cli(&["XADD", CLOCK, "MAXLEN", "0", &id, "", ""]);
            let next = (millis + 60_001) * PER_MILLI;
            assert_eq!(token(&locks).await, next, "{kind:?}");
            nothing_is_left(&server).await;
        }
    }
}

/// Tasks of one process have their tokens from a block, which ends with its millisecond.
#[tokio::test]
async fn a_block_of_tokens_is_cut_where_its_millisecond_ends() {
    let server = RedisServer::start();
    let locks = connect(&server.url()).await;
    let millis = token(&locks).await / PER_MILLI + 60_000;
    server.set_fencing_clock(CLOCK, millis * PER_MILLI + PER_MILLI - 5);
    let tasks: Vec<_> = (0..200)
        .map(|_| {
            let locks = locks.clone();
            tokio::spawn(async move {
                let guard = locks.acquire("k", patient().wait(HANG)).await;
                let guard = guard.expect("granted");
                let token = u64::from(guard.lease().fencing_token());
                guard.release_held().await;
                token
            })
        })
        .collect();
    let mut tokens = Vec::new();
    for task in tasks {
        tokens.push(task.await.expect("no panic"));
    }
    let largest = *tokens.iter().max().expect("some");
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 200, "each token is given once");
    assert!(server.fencing_clock(CLOCK) >= Some(largest));
    assert!(largest / PER_MILLI > millis, "the millisecond was left");
}

/// Waits on the server's side: the manager waits for its reply meanwhile.
fn wait_until_free(server: &RedisServer) {
    let started = Instant::now();
    while server.get("lock:k").is_some() {
        assert!(started.elapsed() < HANG, "the lease ends by itself");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The lease ends between `SET` and `XADD`, and another client has the lock, with a smaller token than the reply then brings.
#[tokio::test]
async fn a_holder_between_the_two_commands_keeps_the_lock() {
    for kind in Kind::tested() {
        let between = Between::start(kind);
        let locks = between.connect().await;
        between.before("XADD", |server| {
            wait_until_free(server);
            server.cli(&["SET", "lock:k", "another holder's", "PX", "60000"]);
            server.cli(&["XADD", CLOCK, "MAXLEN", "0", "*", "", ""]);
        });
        let short = LockOptions::new(Duration::from_millis(200)).no_wait();
        let refused = locks.acquire("k", short).await.expect_err("another has it");
        assert!(
            matches!(refused, LockError::Busy { .. }),
            "{kind:?}: {refused:?}"
        );
        assert_eq!(
            between.server.get("lock:k").as_deref(),
            Some("another holder's")
        );
    }
}

/// The lock is free by then, so it is taken again, with a token of its own.
#[tokio::test]
async fn a_reply_that_is_later_than_its_lease_grants_nothing() {
    for kind in Kind::tested() {
        let between = Between::start(kind);
        let locks = between.connect().await;
        let late = Arc::<Mutex<Option<u64>>>::default();
        let given = late.clone();
        between.before("EXISTS", move |server| {
            wait_until_free(server);
            *given.lock().expect("no panic") = server.fencing_clock(CLOCK);
        });
        let short = LockOptions::new(Duration::from_millis(500)).wait(HANG);
        let guard = locks.acquire("k", short).await.expect("free again");
        let late = late.lock().expect("no panic").expect("a late token");
        assert!(u64::from(guard.lease().fencing_token()) > late, "{kind:?}");
        drop(guard);
        nothing_is_left(&between.server).await;
    }
}

#[tokio::test]
async fn a_server_that_is_full_after_the_first_command_costs_the_lock_and_leaves_none() {
    for kind in Kind::tested() {
        let between = Between::start(kind);
        let locks = between.connect().await;
        token(&locks).await;
        between.before("XADD", |server| {
            server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
        });
        let refused = locks.acquire("k", patient().wait(Duration::from_millis(300)));
        let refused = refused.await.expect_err("it is full");
        assert!(
            matches!(refused, LockError::Unavailable { .. }),
            "{kind:?}: {refused:?}"
        );
        nothing_is_left(&between.server).await;
        between.server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
        token(&locks).await;
    }
}

/// The queue is looked at last, so no entry is overlooked that came after `SET`.
#[tokio::test]
async fn a_waiter_that_comes_between_the_commands_is_served_first() {
    let between = Between::start(Kind::Distribution);
    let (locks, waiter) = (
        between.connect().await,
        connect(&between.server.url()).await,
    );
    let waiting = Arc::<Mutex<Option<tokio::task::JoinHandle<u64>>>>::default();
    let (begun, runtime) = (waiting.clone(), tokio::runtime::Handle::current());
    between.before("EXISTS", move |server| {
        let task = runtime.spawn(async move {
            let guard = waiter.acquire("k", patient().wait(HANG)).await;
            let token = guard.as_ref().expect("granted").lease().fencing_token();
            guard.expect("granted").release_held().await;
            u64::from(token)
        });
        *begun.lock().expect("no panic") = Some(task);
        let started = Instant::now();
        while server.queue("__lock_core__:waiters:lock:k").is_empty() {
            assert!(started.elapsed() < HANG, "it joins the queue");
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    let guard = locks.acquire("k", patient().wait(HANG)).await;
    let guard = guard.expect("granted after the waiter");
    let task = waiting.lock().expect("no panic").take().expect("it waits");
    let first = task.await.expect("no panic");
    assert!(u64::from(guard.lease().fencing_token()) > first);
    guard.release_held().await;
}
