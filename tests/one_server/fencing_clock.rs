//! The fencing clock on each kind of server: its cost, its states, and changes of it between the commands of an acquire.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use lock_core::{LockError, LockManager, LockOptions};
use lock_tests::{
    AcquireFree as _, Direction, HANG, Kind, Proxy, RedisServer, ReleaseHeld as _, Request,
    ShiftedClock, connect, connect_with_time_out, eventually, eventually_blocking, nothing_is_left,
    patient, unavailable,
};

use crate::{between::Between, stopped_waiter::QUEUE};

pub(crate) const CLOCK: &str = "__lock_core__:clock";
pub(crate) const HOUR: Duration = Duration::from_secs(3600);
/// The number of tokens in a millisecond.
const PER_MILLI: u64 = 2048;

/// Options of a request that fails. The ttl is so long that what the request leaves would not expire during a test.
fn failing() -> LockOptions {
    LockOptions::new(HANG * 10).wait(Duration::from_millis(300))
}

/// Takes and releases the lock, and returns its token.
pub(crate) async fn token(locks: &LockManager) -> u64 {
    let guard = locks.acquire_free("k", patient()).await;
    let token = guard.lease().fencing_token();
    guard.release_held().await;
    token.into()
}

/// Connects a manager of a user with scripts, and one of a user without.
async fn both(server: &RedisServer) -> [LockManager; 2] {
    server.add_user_without_scripts();
    let without = connect(&server.url_without_scripts()).await;
    [connect(&server.url()).await, without]
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
            // Both the acquire and the script read the queue.
            assert_eq!(calls, [10, 10, 10, 20], "{kind:?}");
        }
        assert_eq!(server.keys("*"), [CLOCK], "{kind:?}");
        let length: u64 = redis::from_redis_value(server.cli(&["XLEN", CLOCK])).expect("a length");
        assert_eq!(length, 0, "{kind:?}");
    }
}

/// If the commands were sent in sequence, the second would wait for the reply to the first.
#[tokio::test]
async fn a_free_lock_takes_one_round_trip_without_scripts() {
    for kind in Kind::tested() {
        let server = RedisServer::builder().kind(kind).start();
        server.add_user_without_scripts();
        let proxy = Proxy::start(server.port());
        let locks = connect_with_time_out(HANG, &proxy.url_without_scripts()).await;
        // Afterwards the connections for the release are open, too.
        token(&locks).await;
        proxy.clear_log();
        proxy.delay(Direction::Replies, HANG);
        let acquiring = tokio::spawn(async move { locks.acquire("k", patient()).await });
        let commands = || -> Vec<_> { proxy.log().iter().map(Request::command).collect() };
        eventually!(HANG / 2, "both are sent without a reply" => commands() == ["SET", "XADD"]);
        assert!(!acquiring.is_finished(), "{kind:?}");
        acquiring.abort();
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

/// After the restart, the server's clock is an hour late, so only the file tells which tokens were issued.
#[tokio::test]
async fn tokens_grow_across_a_restart_from_a_file_with_the_clock_set_back() {
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
async fn a_manager_that_knows_a_token_gets_a_larger_one_after_the_clock_was_deleted() {
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

#[tokio::test]
async fn a_clock_of_another_type_is_an_error_and_leaves_no_lock() {
    for kind in Kind::tested() {
        let server = RedisServer::builder().kind(kind).start();
        for locks in both(&server).await {
            server.cli(&["DEL", CLOCK]);
            server.cli(&["SET", CLOCK, "7"]);
            let refused = locks.acquire("k", failing()).await;
            let refused = refused.expect_err("no token");
            unavailable(&refused, &format!("Run: DEL {CLOCK}"));
            nothing_is_left(&server).await;
            server.cli(&["DEL", CLOCK]);
            token(&locks).await;
        }
    }
}

/// Someone moved the clock far ahead by hand.
#[tokio::test]
async fn a_clock_beyond_the_largest_token_is_an_error_and_leaves_no_lock() {
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
            let refused = locks.acquire("k", failing()).await;
            let refused = refused.expect_err("no token");
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
async fn a_millisecond_whose_numbers_are_used_up_is_followed_by_the_next() {
    for kind in Kind::tested() {
        let server = RedisServer::builder().kind(kind).start();
        for locks in both(&server).await {
            // A minute ahead of the server's time, as if its clock had been set back.
            let millis = token(&locks).await / PER_MILLI + 60_000;
            let last = millis * PER_MILLI + PER_MILLI - 2;
            server.set_fencing_clock(CLOCK, last);
            assert_eq!(token(&locks).await, last + 1, "{kind:?}");
            // The next id has the number 2048, which does not fit into a token.
            assert_eq!(token(&locks).await, last + 2, "{kind:?}");
            assert_eq!((last + 2) % PER_MILLI, 0);
            // So many numbers were used up that carrying them over would advance the clock by a minute.
            let id = format!("{}-{}", millis + 60_000, 60_000 * PER_MILLI);
            server.cli(&["XADD", CLOCK, "MAXLEN", "0", &id, "", ""]);
            let next = (millis + 60_001) * PER_MILLI;
            assert_eq!(token(&locks).await, next, "{kind:?}");
            nothing_is_left(&server).await;
        }
    }
}

/// Tasks of one process take their tokens from a block.
#[tokio::test]
async fn a_block_of_tokens_ends_with_its_millisecond() {
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
    assert_eq!(tokens.len(), 200, "each token is issued once");
    assert!(server.fencing_clock(CLOCK) >= Some(largest));
    assert!(
        largest / PER_MILLI > millis,
        "the tokens left the millisecond"
    );
}

/// Waits on the side of the server, while the manager waits for its reply.
fn wait_until_free(server: &RedisServer) {
    eventually_blocking(HANG, "the lease expires", || server.get("lock:k").is_none());
}

/// The lease expires between `SET` and `XADD`, and another client takes the lock, with a smaller token than that of the reply.
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

/// The lock is free by then, so it is requested again, and gets another token.
#[tokio::test]
async fn a_reply_that_is_later_than_its_lease_grants_nothing() {
    for kind in Kind::tested() {
        let between = Between::start(kind);
        let locks = between.connect().await;
        let late = Arc::<Mutex<Option<u64>>>::default();
        let read = late.clone();
        between.before("EXISTS", move |server| {
            wait_until_free(server);
            *read.lock().expect("no panic") = server.fencing_clock(CLOCK);
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
async fn a_server_that_is_full_after_the_first_command_leaves_no_lock() {
    for kind in Kind::tested() {
        let between = Between::start(kind);
        let locks = between.connect().await;
        token(&locks).await;
        between.before("XADD", |server| {
            server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
        });
        let refused = locks.acquire("k", failing()).await;
        let refused = refused.expect_err("it is full");
        assert!(
            matches!(refused, LockError::Unavailable { .. }),
            "{kind:?}: {refused:?}"
        );
        nothing_is_left(&between.server).await;
        between.server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
        token(&locks).await;
    }
}

/// The queue is read last, so an entry that was added after `SET` is seen.
#[tokio::test]
async fn a_waiter_that_arrives_between_the_commands_is_served_first() {
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
        eventually_blocking(HANG, "it joins the queue", || {
            !server.queue(QUEUE).is_empty()
        });
    });
    let guard = locks.acquire("k", patient().wait(HANG)).await;
    let guard = guard.expect("granted after the waiter");
    let task = waiting.lock().expect("no panic").take().expect("it waits");
    let first = task.await.expect("no panic");
    assert!(u64::from(guard.lease().fencing_token()) > first);
    guard.release_held().await;
}
