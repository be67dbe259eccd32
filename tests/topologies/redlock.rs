//! Locks on several independent servers (Redlock): some are down, hang, restart, have a wrong clock, or miss a request.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use lock_core::{
    LeaseLost, LockError, LockGuard, LockManager, LockManagerBuilder, LockOptions, OnceOptions,
};
use lock_tests::{
    AcquireFree as _, AfterLoss, Direction, Frames, HANG, Process, Proxy, RedisServer,
    ReleaseHeld as _, Scope, ShiftedClock, assert_fails, checked, eventually, eventually_blocking,
    granted, invalid, options, run_in_a_row, scripts::PROPOSE, unavailable,
};
use tokio::time::timeout;

use crate::waist::every_claim_holds;

/// Long for a release, but much shorter than a [`long`] ttl.
const SOON: Duration = Duration::from_secs(30);
const KEY: &str = "lock:k";
const FENCE: &str = "__lock_core__:fence";

/// Independent servers, each with a proxy in front of it.
struct Servers {
    all: Vec<RedisServer>,
    proxies: Vec<Proxy>,
}

impl Servers {
    /// Starts servers that have a counter, since a server without one accepts nothing for up to a second.
    fn start(count: usize) -> Self {
        let servers = Self::of((0..count).map(|_| RedisServer::start()).collect());
        for server in &servers.all {
            server.cli(&["SET", FENCE, "1"]);
        }
        servers
    }

    fn of(all: Vec<RedisServer>) -> Self {
        let proxies = all.iter().map(|server| Proxy::start(server.port()));
        let proxies = proxies.collect();
        Self { all, proxies }
    }

    fn urls(&self) -> Vec<String> {
        self.proxies.iter().map(Proxy::url).collect()
    }

    /// Returns a manager that counts the votes of servers that have just started.
    async fn manager(&self) -> LockManager {
        builder()
            .redlock(self.urls())
            .await
            .expect("the servers are up")
    }

    /// Returns the number of servers that have a key.
    fn holding(&self, key: &str) -> usize {
        let values = self.all.iter().filter(|server| server.get(key).is_some());
        values.count()
    }

    async fn all_have(&self, key: &str) {
        eventually!(HANG, "all servers have it" => self.holding(key) == self.all.len());
    }

    async fn nothing_is_left(&self) {
        eventually(HANG, "no lock is left", async || {
            self.all
                .iter()
                .all(|server| server.keys("lock:*").is_empty())
        })
        .await;
    }

    fn kill(&self, which: impl IntoIterator<Item = usize>) {
        for index in which {
            self.all[index].kill9();
        }
    }

    fn black_hole(&self, which: impl IntoIterator<Item = usize>) {
        for index in which {
            self.proxies[index].black_hole(Scope::All);
        }
    }
}

fn builder() -> LockManagerBuilder {
    LockManager::builder().quarantine(Duration::ZERO)
}

/// Options with a ttl that outlasts every test.
fn long() -> LockOptions {
    LockOptions::new(Duration::from_secs(60))
}

#[tokio::test]
async fn an_acquire_and_a_release_usually_take_one_round_trip_each() {
    let servers = Servers::start(3);
    // A time-out would send a PING.
    let patient = builder().command_timeout(HANG);
    let locks = patient.redlock(servers.urls()).await.expect("they are up");
    // From here on, the servers know the scripts.
    let guard = locks.acquire_free("k", options()).await;
    guard.release_held().await;
    servers.nothing_is_left().await;
    // If the last reply arrives after the release has begun, the release sends one more request. That does not happen each time.
    let mut fewest = usize::MAX;
    for _ in 0..10 {
        for proxy in &servers.proxies {
            proxy.clear_log();
        }
        let guard = locks.acquire_free("k", options()).await;
        servers.all_have(KEY).await;
        guard.release_held().await;
        servers.nothing_is_left().await;
        let scripts = servers
            .proxies
            .iter()
            .map(|proxy| proxy.requests("EVALSHA"));
        let all = servers.proxies.iter().map(|proxy| proxy.log().len());
        assert_eq!(
            scripts.sum::<usize>(),
            all.clone().sum::<usize>(),
            "nothing but scripts"
        );
        fewest = fewest.min(all.sum());
    }
    assert_eq!(fewest, 2 * 3);
}

#[tokio::test]
async fn the_next_acquire_waits_for_the_reply_to_a_release_in_the_background() {
    let servers = Servers::start(3);
    let locks = builder().command_timeout(HANG).redlock(servers.urls());
    let locks = locks.await.expect("the servers are up");
    run_in_a_row(&locks, "k", 10).await;
    // The servers execute the requests, but all replies are lost.
    let lose = async |_| {
        servers.all_have(KEY).await;
        for proxy in &servers.proxies {
            proxy.lose(Direction::Replies, Frames::every(), AfterLoss::Silence);
        }
        servers.all[0].get(KEY)
    };
    let options = long().release_in_background();
    let first = locks.run("k", options, lose).await.expect("free");
    let same_key = locks.acquire("k", long());
    let other_key = locks.acquire("other", long());
    tokio::select! {
        biased;
        odd = same_key => panic!("no reply has arrived: {odd:?}"),
        odd = other_key => panic!("no reply has arrived: {odd:?}"),
        () = eventually(HANG, "the requests sent after the release have arrived", async || {
            servers.holding("lock:other") == 3
        }) => {}
    }
    // A server whose reply to the first acquire was also lost gets its release half a second later.
    for server in &servers.all {
        let held = server.get(KEY);
        assert!(
            held.is_none() || held == first,
            "the second request was sent"
        );
    }
}

#[tokio::test]
async fn no_call_waits_for_a_minority_that_hangs() {
    let servers = Servers::start(5);
    // A release that waited for a hanging server would take this long, and a vote half a second.
    let patience = Duration::from_secs(20);
    let locks = builder()
        .command_timeout(patience)
        .redlock(servers.urls())
        .await
        .expect("the servers are up");
    servers.black_hole([0, 1]);
    let mut fastest = patience;
    let all = Instant::now();
    // On a busy machine one round may be slow, but not every round.
    for round in 0..20 {
        if round >= 3 && fastest < Duration::from_millis(250) {
            break;
        }
        let started = Instant::now();
        let guard = locks
            .acquire("k", options())
            .await
            .expect("a majority answers");
        fastest = fastest.min(started.elapsed());
        guard.release_held().await;
    }
    assert!(fastest < Duration::from_millis(250), "{fastest:?}");
    assert!(all.elapsed() < patience, "{:?}", all.elapsed());
    for proxy in &servers.proxies {
        proxy.heal();
    }
    servers.nothing_is_left().await;
}

#[tokio::test]
async fn without_a_majority_nothing_is_granted_and_nothing_is_left() {
    let servers = Servers::start(5);
    let locks = servers.manager().await;
    servers.kill([0, 1, 2]);
    let refused = locks
        .acquire("k", options().wait(Duration::from_millis(300)))
        .await;
    unavailable(&refused.expect_err("refused"), "no majority of the 5");
    // With another key, since a server that is up keeps the first one for a moment, which would make it busy.
    let tried = locks.try_acquire("other", options()).await;
    assert_fails!(tried, LockError::Unavailable { .. });
    for server in &servers.all[3..] {
        eventually!(SOON, "nothing is left" => server.keys("lock:*").is_empty());
    }
    for server in &servers.all[..3] {
        server.restart();
    }
    let guard = locks
        .acquire("k", options().wait(HANG))
        .await
        .expect("up again");
    guard.release_held().await;
}

#[tokio::test]
async fn a_request_that_loses_the_vote_releases_its_minority_at_once() {
    let servers = Servers::start(3);
    let locks = servers.manager().await;
    for server in &servers.all[..2] {
        server.cli(&["SET", KEY, "another's", "PX", "60000"]);
    }
    let tried = locks.try_acquire("k", long()).await.expect("answered");
    assert!(tried.is_none());
    eventually!(SOON, "the third is free" => servers.all[2].get(KEY).is_none());
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { locks.acquire("k", long()).await }
    });
    let asked = servers.proxies[0].requests("EVALSHA");
    eventually!(HANG, "it keeps asking" => servers.proxies[0].requests("EVALSHA") > asked + 2);
    servers.all[0].cli(&["DEL", KEY]);
    let guard = granted(waiting).await;
    assert_eq!(servers.all[1].get(KEY).as_deref(), Some("another's"));
    guard.release_held().await;
    assert_eq!(servers.all[1].get(KEY).as_deref(), Some("another's"));
}

/// A has the lock on the servers {1, 2, 3}. Server 3 forgets it. B reaches only {3, 4, 5}, which is a majority.
#[tokio::test]
async fn a_server_that_forgot_a_lock_does_not_give_it_away() {
    const QUARANTINE: Duration = Duration::from_secs(12);
    let servers = Servers::start(5);
    let of_b = servers.all.iter().map(|server| Proxy::start(server.port()));
    let of_b: Vec<_> = of_b.collect();
    let a = servers.manager().await;
    let b = LockManager::builder()
        .quarantine(QUARANTINE)
        .redlock(of_b.iter().map(Proxy::url))
        .await
        .expect("the servers are up");
    has_no_votes(&b).await;
    let other = b.acquire("other", options().wait(HANG)).await;
    other.expect("up for long enough").release_held().await;

    servers.black_hole([3, 4]);
    let of_a = a.acquire("k", long()).await.expect("a majority answers");
    assert!(servers.all[3].get(KEY).is_none() && servers.all[4].get(KEY).is_none());
    for proxy in &of_b[..2] {
        proxy.black_hole(Scope::All);
    }
    servers.all[2].kill9();
    servers.all[2].restart();
    for _ in 0..3 {
        let of_b = b.try_acquire("k", options()).await;
        assert_fails!(of_b, LockError::Unavailable { .. });
    }
    for server in &servers.all[3..] {
        eventually!(SOON, "nothing is left" => server.get(KEY).is_none());
    }
    assert!(!of_a.lease().is_lost());
    let other = b.acquire("other", options().wait(HANG)).await;
    other.expect("the quarantine ends").release_held().await;
}

/// Returns a manager with a quarantine of this many seconds.
async fn cautious(servers: &Servers, quarantine: u64) -> LockManager {
    let builder = LockManager::builder().quarantine(Duration::from_secs(quarantine));
    let locks = builder.redlock(servers.urls()).await;
    locks.expect("the servers are up")
}

async fn has_no_votes(locks: &LockManager) {
    static TRIES: AtomicU32 = AtomicU32::new(0);
    // Each try has a new key, since a server that votes keeps the key of a lost try for a moment. If its reply arrived before the
    // silence of the others is known, the next try for that key would be busy.
    let key = format!("try {}", TRIES.fetch_add(1, Ordering::Relaxed));
    let tried = locks.try_acquire(key, options()).await;
    let Err(LockError::Unavailable { source, .. }) = tried else {
        panic!("not unavailable: {tried:?}")
    };
    let reason = source.to_string();
    assert!(reason.contains("may have forgotten locks"), "{reason}");
}

#[tokio::test]
async fn a_quarantine_counts_what_other_processes_have_watched_until_the_data_are_lost() {
    const QUARANTINE: u64 = 8;
    let start = |()| RedisServer::builder().setting("appendonly", "yes").start();
    let servers = Servers::of([(); 3].map(start).into());
    let first = cautious(&servers, QUARANTINE).await;
    has_no_votes(&first).await;
    let guard = first.acquire("k", options().wait(HANG)).await;
    guard.expect("watched for long enough").release_held().await;
    let second = cautious(&servers, QUARANTINE).await;
    second
        .acquire_free("k", options())
        .await
        .release_held()
        .await;
    // The vote itself finds the loss, so a manager that has not voted yet notices it, too.
    let third = cautious(&servers, QUARANTINE).await;
    let all = Instant::now();
    for server in &servers.all[..2] {
        server.cli(&["FLUSHALL"]);
    }
    has_no_votes(&second).await;
    has_no_votes(&third).await;
    has_no_votes(&cautious(&servers, QUARANTINE).await).await;
    let guard = second.acquire("k", options().wait(HANG)).await;
    guard.expect("watched again").release_held().await;
    assert!(
        all.elapsed() >= Duration::from_secs(QUARANTINE),
        "{:?}",
        all.elapsed()
    );
    // A server that restarts from a file may lack the newest locks.
    let marker = servers.all[0].get("__lock_core__:watched");
    for server in &servers.all[..2] {
        server.kill9();
        server.restart();
    }
    assert_eq!(servers.all[0].get("__lock_core__:watched"), marker);
    has_no_votes(&cautious(&servers, QUARANTINE).await).await;
}

#[tokio::test]
async fn a_server_that_is_listed_with_two_addresses_is_refused() {
    let servers = Servers::start(3);
    let urls = servers.urls();
    // The last address bypasses the proxy, so only the server's own reply shows that it is listed already.
    let [direct, first, second] = [&servers.all[0].url(), &urls[0], &urls[1]];
    let refused = builder().redlock([first, second, direct]).await;
    invalid(&refused.expect_err("refused"), "is the same server as");
}

#[tokio::test]
async fn a_server_that_turns_out_to_be_listed_twice_has_one_vote() {
    let servers = Servers::start(3);
    let (first, second) = (&servers.all[0], &servers.all[1]);
    let hidden = Proxy::start(first.port());
    let urls = [first.url(), second.url(), hidden.url()];
    // It does not answer at first, so nothing shows which server it is.
    hidden.black_hole(Scope::All);
    let locks = builder()
        .connect_timeout(Duration::from_secs(5))
        .command_timeout(Duration::from_secs(5))
        .redlock(&urls)
        .await
        .expect("two of three");
    hidden.heal();
    eventually(HANG, "it is detected", async || {
        let Ok(health) = locks.check().await else {
            return false;
        };
        let mut warnings = health.warnings.iter();
        warnings.any(|warning| warning.text.contains("is the same server as"))
    })
    .await;
    let guard = locks.acquire("k", options()).await;
    guard.expect("two of three").release_held().await;
    second.kill9();
    let tried = locks
        .acquire("k", options().wait(Duration::from_secs(1)))
        .await;
    assert!(
        matches!(tried, Err(LockError::Unavailable { .. })),
        "one server, twice: {tried:?}"
    );
}

#[tokio::test]
async fn a_body_that_runs_once_is_refused() {
    let servers = Servers::start(3);
    let locks = servers.manager().await;
    let body = async |_| -> Result<(), String> { panic!("it must not run") };
    let options = OnceOptions::keep(Duration::from_secs(1));
    let refused = locks.run_once("k", options, body).await;
    invalid(&refused.expect_err("refused"), "the result of a run");
    assert_eq!(servers.holding(KEY), 0);
}

#[tokio::test]
async fn a_ttl_that_outlasts_the_quarantine_is_refused() {
    let servers = Servers::start(3);
    let locks = servers.manager().await;
    let minute = Duration::from_secs(60);
    let refused = locks.acquire("k", LockOptions::new(minute * 2)).await;
    invalid(&refused.expect_err("refused"), "max_ttl");
    let locks = builder()
        .max_ttl(minute * 3)
        .redlock(servers.urls())
        .await
        .expect("up");
    let guard = locks
        .acquire("k", LockOptions::new(minute * 2))
        .await
        .expect("allowed");
    guard.release_held().await;
}

/// A number must be above the server's counter and near its clock, so there is none until the clock has caught up.
#[tokio::test]
async fn clocks_that_were_set_back_are_named_until_they_are_right() {
    let clock = ShiftedClock::new();
    let start = |()| RedisServer::builder().clock(&clock).start();
    let servers = Servers::of([(); 3].map(start).into());
    let locks = servers.manager().await;
    locks
        .acquire_free("k", options())
        .await
        .release_held()
        .await;
    let about_clocks = async |locks: &LockManager| {
        let health = locks.check().await.expect("they answer");
        let warnings = health.warnings.into_iter().map(|warning| warning.text);
        warnings
            .filter(|warning| warning.contains("behind its last fencing token"))
            .collect::<Vec<_>>()
    };
    assert_eq!(about_clocks(&locks).await, [""; 0]);
    clock.set_back(Duration::from_secs(1000));
    let tried = locks.try_acquire("k", options()).await;
    let Err(LockError::Unavailable { source, .. }) = tried else {
        panic!("not unavailable: {tried:?}")
    };
    let reason = source.to_string();
    assert!(reason.contains("behind its last fencing token"), "{reason}");
    for locks in [&locks, &servers.manager().await] {
        let warnings = about_clocks(locks).await;
        assert_eq!(warnings.len(), 3, "{warnings:?}");
        // The clock may be a second behind the token, so the time until the vote is less than 1,000 s.
        assert!(warnings[0].contains("votes in 99"), "{warnings:?}");
    }
    clock.set_right();
    locks
        .acquire_free("k", options())
        .await
        .release_held()
        .await;
    assert_eq!(about_clocks(&locks).await, [""; 0]);
}

#[tokio::test]
async fn a_lease_is_renewed_by_a_majority() {
    let servers = Servers::start(5);
    let locks = servers.manager().await;
    let guard = locks
        .acquire_free("k", LockOptions::new(Duration::from_secs(5)))
        .await;
    servers.kill([0]);
    servers.black_hole([1]);
    for _ in 0..4 {
        let remaining = guard.lease().remaining();
        let before = Instant::now() + remaining;
        eventually(HANG, "renewed", async || {
            assert!(!guard.lease().is_lost());
            Instant::now() + guard.lease().remaining() > before + Duration::from_millis(200)
        })
        .await;
    }
    guard.lease().verify().await.expect("a majority has it");
    guard.release_held().await;
}

#[tokio::test]
async fn a_lease_that_a_majority_lost_is_lost_and_never_recreated() {
    let servers = Servers::start(5);
    let locks = servers.manager().await;
    let guard = locks
        .acquire_free("k", LockOptions::new(Duration::from_secs(6)))
        .await;
    servers.all_have(KEY).await;
    for server in &servers.all[..3] {
        server.cli(&["DEL", KEY]);
    }
    let reason = timeout(HANG, guard.lease().lost()).await.expect("noticed");
    assert_eq!(reason, LeaseLost::TakenAway);
    // A request that recreates the key would be sent before these, on the same connections.
    for _ in 0..3 {
        let other = locks.acquire_free("other", options()).await;
        servers.all_have("lock:other").await;
        other.release_held().await;
    }
    assert!(servers.holding(KEY) <= 2);
    drop(guard);
    servers.nothing_is_left().await;
}

#[tokio::test]
async fn a_minority_that_lost_the_key_gets_it_back_and_is_released_too() {
    let servers = Servers::start(5);
    let locks = servers.manager().await;
    let guard = locks
        .acquire_free("k", LockOptions::new(Duration::from_secs(6)))
        .await;
    servers.all_have(KEY).await;
    servers.all[0].cli(&["DEL", KEY]);
    servers.all[1].cli(&["SET", KEY, "another's", "PX", "60000"]);
    let value = servers.all[2].get(KEY);
    eventually!(HANG, "recreated" => servers.all[0].get(KEY) == value);
    assert!(!guard.lease().is_lost());
    assert_eq!(servers.all[1].get(KEY).as_deref(), Some("another's"));
    guard.release_held().await;
    servers.all[1].cli(&["DEL", KEY]);
    servers.nothing_is_left().await;
}

/// Acquires the lock on the first three of five servers, while the other two are unreachable or down. Then the third restarts without
/// its data, and the other two return.
async fn is_left_on_two_of_five(quarantine: u64, are_killed: bool) -> (Servers, LockGuard) {
    let servers = Servers::start(5);
    let locks = cautious(&servers, quarantine).await;
    let first = locks.acquire("other", options().wait(HANG)).await;
    first.expect("up for long enough").release_held().await;
    if are_killed {
        servers.kill([3, 4]);
    } else {
        servers.black_hole([3, 4]);
    }
    let options = LockOptions::new(Duration::from_secs(12)).wait(HANG);
    let guard = locks.acquire("k", options).await.expect("three of five");
    let up = servers.all[..3].iter();
    eventually!(HANG, "all three have it" => up.clone().all(|server| server.get(KEY).is_some()));
    servers.kill([2]);
    servers.all[2].restart();
    for index in [3, 4] {
        if are_killed {
            servers.all[index].restart();
        } else {
            // The requests that it held back are lost.
            servers.proxies[index].reset();
            servers.proxies[index].heal();
        }
    }
    (servers, guard)
}

#[tokio::test]
async fn a_lease_spreads_to_servers_that_missed_it_when_another_restarts_without_data() {
    for (quarantine, are_killed) in [(0, false), (0, true), (3, false), (3, true)] {
        let (servers, guard) = is_left_on_two_of_five(quarantine, are_killed).await;
        eventually(HANG, "on all, or lost", async || {
            servers.holding(KEY) == 5 || guard.lease().is_lost()
        })
        .await;
        assert!(!guard.lease().is_lost());
        let value = servers.all[0].get(KEY);
        assert!(servers.all.iter().all(|server| server.get(KEY) == value));
        guard.lease().verify().await.expect("a majority has it");
        guard.release_held().await;
        servers.nothing_is_left().await;
    }
}

#[tokio::test]
async fn a_lease_is_not_restored_where_another_client_has_the_lock() {
    let (servers, guard) = is_left_on_two_of_five(0, false).await;
    for server in &servers.all[2..] {
        server.cli(&["SET", KEY, "another's", "PX", "60000"]);
    }
    let reason = timeout(HANG, guard.lease().lost()).await.expect("noticed");
    assert_eq!(reason, LeaseLost::TakenAway);
    for server in &servers.all[2..] {
        assert_eq!(server.get(KEY).as_deref(), Some("another's"));
    }
}

#[tokio::test]
async fn operators_see_and_free_a_lock_on_all_servers() {
    let servers = Servers::start(5);
    let locks = servers.manager().await;
    assert!(locks.inspect("k").await.expect("answered").is_none());
    let guard = locks.acquire_free("k", options()).await;
    servers.all_have(KEY).await;
    servers.kill([4]);
    let info = locks
        .inspect("k")
        .await
        .expect("a majority answers")
        .expect("held");
    assert!(info.remaining.expect("it expires") > Duration::from_secs(5));
    let health = checked(&locks).await;
    assert_eq!(health.warnings.len(), 1, "{:?}", health.warnings);
    assert!(
        health.warnings[0].text.contains("does not vote"),
        "{:?}",
        health.warnings
    );
    locks.force_release("k").await.expect("a majority answers");
    assert!(locks.inspect("k").await.expect("answered").is_none());
    let released = guard.release().await;
    assert_fails!(released, LockError::Lost { .. });
    servers.kill([2, 3]);
    let inspected = locks.inspect("k").await;
    assert_fails!(inspected, LockError::Unavailable { .. });
    let checked = locks.check().await;
    assert_fails!(checked, LockError::Unavailable { .. });
}

/// Tests the server's side of a vote with raw commands.
#[test]
fn a_server_accepts_a_number_above_its_counter_and_near_its_clock_for_a_lock_that_is_free_or_ours()
{
    /// In fencing tokens.
    const SECOND: u64 = 2_048_000;
    let server = RedisServer::start();
    let now = || {
        let time = server.time();
        time.as_secs() * SECOND + u64::from(time.subsec_micros()) * 2048 / 1000
    };
    let propose = |token: &str, number: u64, count: &str| -> Vec<i64> {
        let number = number.to_string();
        let words = [
            "EVAL",
            PROPOSE,
            "4",
            KEY,
            FENCE,
            "mark",
            "marker",
            token,
            "10000",
            &number,
            count,
            "us",
            "5000",
            "run:name:",
        ];
        redis::from_redis_value(server.cli(&words)).expect("numbers")
    };
    let fence = || {
        server
            .get(FENCE)
            .map_or(0, |text| text.parse::<u64>().expect("a number"))
    };

    // Without its marker, or with another one, the server may have forgotten locks.
    for marker in ["", "run:name", "run:other:125000"] {
        server.cli(&["SET", "marker", marker]);
        assert_eq!(propose("a", now(), "1"), [-2], "{marker}");
    }
    assert_eq!(server.keys("*"), ["marker"]);
    server.cli(&["SET", "marker", "run:name:125000"]);
    // Without a counter, the server may have accepted and forgotten any number that is not too far above its clock.
    let asked = now();
    assert_eq!(propose("a", asked + SECOND / 2, "1")[0], 0);
    assert_eq!(server.get(KEY), None);
    let bound = asked + SECOND..=now() + SECOND;
    assert!(bound.contains(&fence()), "{bound:?}: {}", fence());
    // From here on the server has an old counter.
    server.cli(&["SET", FENCE, "7"]);
    for far in [now() - 2 * SECOND, now() + 2 * SECOND] {
        assert_eq!(propose("a", far, "1")[0], 0, "far from its clock");
    }
    assert_eq!((server.get(KEY), fence()), (None, 7));
    let first = now();
    assert_eq!(propose("a", first, "1")[0], 1);
    assert_eq!((server.get(KEY).as_deref(), fence()), (Some("a"), first));
    assert_eq!(propose("a", first, "1")[0], 0, "the same number again");
    assert_eq!(
        propose("a", first + 63, "64")[0],
        0,
        "a block that begins at the counter"
    );
    assert_eq!(propose("a", first + 64, "64")[0], 1);
    assert_eq!(fence(), first + 64);

    let held = propose("b", now(), "1");
    assert_eq!(held[0], -1);
    assert!(held[2] > 5_000 && held[2] <= 10_000, "{held:?}");
    assert_eq!(
        (server.get(KEY).as_deref(), fence()),
        (Some("a"), first + 64)
    );
    assert_eq!(server.get("mark").as_deref(), Some("us"));
    assert!(server.pttl("mark").is_some(), "no mark without an expiry");
    server.cli(&["SET", "mark", "them", "PX", "5000"]);
    server.cli(&["PEXPIRE", KEY, "50000"]);
    let accepted = propose("a", now(), "1");
    assert_eq!(
        (accepted[0], accepted[2]),
        (1, 1),
        "another manager asks for it"
    );
    assert!(
        server.pttl(KEY).expect("held") > Duration::from_secs(40),
        "never shortened"
    );

    server.cli(&["DEL", KEY]);
    let ahead = now() + SECOND / 2;
    assert_eq!(propose("a", ahead, "1")[0], 1);
    server.cli(&["DEL", KEY, FENCE]);
    assert_eq!(propose("b", ahead - 1, "1")[0], 0, "a smaller one");
    assert_eq!(server.get(KEY), None);
}

#[tokio::test]
async fn its_backend_keeps_its_promises_to_the_driver() {
    let servers = Servers::start(3);
    every_claim_holds(&servers.manager().await).await;
}

#[tokio::test]
async fn a_server_that_missed_a_release_gets_it_again() {
    let servers = Servers::start(3);
    let locks = builder()
        .command_timeout(Duration::from_secs(2))
        .redlock(servers.urls())
        .await
        .expect("the servers are up");
    let guard = locks.acquire_free("k", long()).await;
    servers.all_have(KEY).await;
    servers.proxies[2].lose(Direction::Requests, Frames::every(), AfterLoss::Silence);
    guard.release().await.expect("by a majority");
    assert!(servers.all[2].get(KEY).is_some());
    servers.proxies[2].heal();
    eventually!(SOON, "released there, too" => servers.all[2].get(KEY).is_none());
}

/// Without exclusion, the counter of the contenders loses increments.
#[test]
fn two_processes_lose_no_increment_while_a_minority_dies_or_stalls() {
    const TASKS: u32 = 3;
    // Neither process may end before the last server continues: a stalled server would lose its last release, and that key would
    // block the other process while a second server is unavailable.
    const INCREMENTS: u32 = 400;
    let store = RedisServer::start();
    let servers: Vec<_> = (0..5).map(|_| RedisServer::start()).collect();
    let list = servers
        .iter()
        .map(RedisServer::url)
        .collect::<Vec<_>>()
        .join(",");
    let (tasks, increments, url) = (TASKS.to_string(), INCREMENTS.to_string(), store.url());
    let arguments = [&*list, &*url, "counter", &*tasks, &*increments, "locked"];
    let mut contenders: Vec<Process> = (0..2)
        .map(|_| Process::spawn(env!("CARGO_BIN_EXE_contender"), &arguments, &[]))
        .collect();
    for contender in &mut contenders {
        assert_eq!(contender.line(), "ready");
    }
    for contender in &mut contenders {
        contender.say("go");
    }
    let total = 2 * TASKS * INCREMENTS;
    let counted = || {
        store
            .get("counter")
            .map_or(0, |text| text.parse().expect("a number"))
    };
    // One server dies. Of the others, one at a time stalls, and keeps its data.
    let reached = |part: u32| {
        // A busy machine may be slow as long as it makes progress.
        while counted() < total * part / 8 {
            let before = counted();
            eventually_blocking(HANG, "they continue", || counted() > before);
        }
    };
    reached(1);
    servers[0].kill9();
    for (part, server) in (2..).zip(&servers[1..]) {
        reached(part);
        server.stop();
        reached(part + 1);
        server.cont();
    }
    for contender in contenders {
        contender.join();
    }
    assert_eq!(counted(), total);
}

#[tokio::test]
async fn a_quarantine_adds_up_the_times_that_short_lived_processes_have_watched() {
    const QUARANTINE: u64 = 6;
    let servers = Servers::start(3);
    let wait = Duration::from_millis(1500);
    let started = Instant::now();
    loop {
        let process = cautious(&servers, QUARANTINE).await;
        let acquired = process.acquire("k", options().wait(wait)).await;
        if let Ok(guard) = acquired {
            guard.release_held().await;
            break;
        }
        assert!(started.elapsed() < HANG, "never");
    }
    let elapsed = started.elapsed();
    assert!(elapsed >= Duration::from_secs(QUARANTINE), "{elapsed:?}");
}
