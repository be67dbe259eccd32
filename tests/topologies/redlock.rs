//! Locks on several servers, of which some are down, hang, restart, or never got the request.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use lock_core::{
    LeaseLost, LockError, LockGuard, LockManager, LockManagerBuilder, LockOptions, OnceOptions,
};
use lock_tests::{
    AcquireFree as _, After, Direction, HANG, Process, Proxy, RedisServer, ReleaseHeld as _, Scope,
    ShiftedClock, Which, assert_fails, eventually, eventually_blocking, invalid, options,
    run_in_a_row, scripts::PROPOSE, unavailable,
};
use tokio::time::timeout;

/// Long for a release, and short for a lock with a [`long`] ttl.
const SOON: Duration = Duration::from_secs(30);
const KEY: &str = "lock:k";
const FENCE: &str = "__lock_core__:fence";

/// Servers that do not know each other, each behind a proxy.
struct Servers {
    all: Vec<RedisServer>,
    proxies: Vec<Proxy>,
}

impl Servers {
    /// They are not new: a server without a counter accepts nothing for up to a second.
    fn start(count: usize) -> Self {
        let all: Vec<_> = (0..count).map(|_| RedisServer::start()).collect();
        for server in &all {
            server.cli(&["SET", FENCE, "1"]);
        }
        let proxies = all
            .iter()
            .map(|server| Proxy::start(server.port()))
            .collect();
        Self { all, proxies }
    }

    fn urls(&self) -> Vec<String> {
        self.proxies.iter().map(Proxy::url).collect()
    }

    /// A manager that accepts votes of servers that have just been started.
    async fn manager(&self) -> LockManager {
        builder()
            .redlock(self.urls())
            .await
            .expect("the servers are up")
    }

    /// The number of servers that have a key.
    fn holding(&self, key: &str) -> usize {
        let values = self.all.iter().filter(|server| server.get(key).is_some());
        values.count()
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

fn fencing(guard: &LockGuard) -> u64 {
    guard.lease().fencing_token().into()
}

#[tokio::test]
async fn a_lock_is_on_all_servers_and_gone_from_all_when_it_is_released() {
    let servers = Servers::start(5);
    let locks = servers.manager().await;
    let guard = locks.acquire_free("k", options()).await;
    eventually(HANG, "all have it", async || servers.holding(KEY) == 5).await;
    let token = fencing(&guard);
    for server in &servers.all {
        assert_eq!(server.get(FENCE), Some(token.to_string()), "one number");
    }
    guard.release_held().await;
    servers.nothing_is_left().await;
}

#[tokio::test]
async fn an_acquire_is_one_round_trip_as_a_rule_and_a_release_another() {
    let servers = Servers::start(3);
    let locks = servers.manager().await;
    // The servers know the scripts from now on.
    let guard = locks.acquire_free("k", options()).await;
    guard.release_held().await;
    servers.nothing_is_left().await;
    // The last reply may come after the release has begun, and then the release sends one more request: not each time.
    let mut fewest = usize::MAX;
    for _ in 0..10 {
        for proxy in &servers.proxies {
            proxy.clear_log();
        }
        let guard = locks.acquire_free("k", options()).await;
        eventually(HANG, "all have it", async || servers.holding(KEY) == 3).await;
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
    // The servers get the requests, and no reply comes back.
    let lose = async |_| {
        eventually(HANG, "all have it", async || servers.holding(KEY) == 3).await;
        for proxy in &servers.proxies {
            proxy.lose(Direction::Replies, Which::every(), After::Silence);
        }
        servers.all[0].get(KEY)
    };
    let options = long().release_in_background();
    let first = locks.run("k", options, lose).await.expect("free");
    let behind_it = locks.acquire("k", long());
    let beside_it = locks.acquire("other", long());
    tokio::select! {
        biased;
        odd = behind_it => panic!("no reply has come: {odd:?}"),
        odd = beside_it => panic!("no reply has come: {odd:?}"),
        () = eventually(HANG, "what left behind the release has arrived", async || {
            servers.holding("lock:other") == 3
        }) => {}
    }
    // Where the reply to the first acquire was lost, too, its release follows half a second later.
    for server in &servers.all {
        let held = server.get(KEY);
        assert!(held.is_none() || held == first, "the second one was sent");
    }
}

#[tokio::test]
async fn a_minority_that_is_down_is_not_missed() {
    let servers = Servers::start(5);
    let locks = servers.manager().await;
    servers.kill([1, 3]);
    for _ in 0..5 {
        let guard = locks
            .acquire("k", options())
            .await
            .expect("a majority is up");
        guard.release_held().await;
    }
    for index in [0, 2, 4] {
        let server = &servers.all[index];
        eventually(HANG, "let go", async || server.get(KEY).is_none()).await;
    }
}

#[tokio::test]
async fn no_call_waits_for_a_minority_that_hangs() {
    let servers = Servers::start(5);
    // A release that waited for a server that hangs would take this long, and a vote half a second.
    let patience = Duration::from_secs(20);
    let locks = builder()
        .command_timeout(patience)
        .redlock(servers.urls())
        .await
        .expect("the servers are up");
    servers.black_hole([0, 1]);
    let mut fastest = patience;
    let all = Instant::now();
    // One round may be slow on a busy machine, but not each.
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
        proxy.pass();
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
    // Another key: a server that is up keeps that of a lost vote for a moment, and the lock would be busy.
    let tried = locks.try_acquire("other", options()).await;
    assert_fails!(tried, LockError::Unavailable { .. });
    for server in &servers.all[3..] {
        eventually(SOON, "let go", async || server.keys("lock:*").is_empty()).await;
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
async fn contenders_that_begin_together_all_have_their_turn_and_growing_tokens() {
    const CONTENDERS: usize = 5;
    const ROUNDS: usize = 8;
    let servers = Servers::start(3);
    let held = Arc::new(AtomicBool::new(false));
    let tokens = Arc::new(Mutex::new(Vec::new()));
    let mut running = Vec::new();
    for _ in 0..CONTENDERS {
        let locks = servers.manager().await;
        let (held, tokens) = (held.clone(), tokens.clone());
        running.push(tokio::spawn(async move {
            for _ in 0..ROUNDS {
                let guard = locks
                    .acquire("k", options().wait(HANG))
                    .await
                    .expect("its turn");
                assert!(!held.swap(true, Ordering::SeqCst), "two at once");
                tokens.lock().expect("no panic").push(fencing(&guard));
                tokio::task::yield_now().await;
                held.store(false, Ordering::SeqCst);
                guard.release_held().await;
            }
        }));
    }
    for task in running {
        timeout(HANG, task)
            .await
            .expect("no task is stuck")
            .expect("no assertion failed");
    }
    let tokens = tokens.lock().expect("no panic").clone();
    assert_eq!(tokens.len(), CONTENDERS * ROUNDS);
    assert!(
        tokens.windows(2).all(|pair| pair[0] < pair[1]),
        "{tokens:?}"
    );
    servers.nothing_is_left().await;
}

#[tokio::test]
async fn a_loser_lets_go_at_once() {
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
    eventually!(HANG, "it asks again and again" => servers.proxies[0].requests("EVALSHA") > 4);
    servers.all[0].cli(&["DEL", KEY]);
    let guard = timeout(HANG, waiting)
        .await
        .expect("no hang")
        .expect("no panic");
    let guard = guard.expect("a majority is free");
    assert_eq!(servers.all[1].get(KEY).as_deref(), Some("another's"));
    guard.release_held().await;
    assert_eq!(servers.all[1].get(KEY).as_deref(), Some("another's"));
}

#[tokio::test]
async fn another_librarys_lock_is_respected_by_a_majority_only() {
    let servers = Servers::start(5);
    let locks = servers.manager().await;
    for server in &servers.all[..3] {
        server.cli(&["SET", KEY, "another's", "PX", "30000"]);
    }
    let busy = locks.acquire("k", options().no_wait()).await;
    let Err(LockError::Busy {
        retry_after: Some(left),
        ..
    }) = busy
    else {
        panic!("not busy: {busy:?}")
    };
    assert_eq!(
        left,
        Duration::from_secs(10),
        "at most, though 30 s are left"
    );
    servers.all[0].cli(&["DEL", KEY]);
    let guard = locks.acquire("k", options()).await.expect("three are free");
    let info = locks.inspect("k").await.expect("answered").expect("held");
    assert!(
        matches!(info.holder, lock_core::inspect::Holder::Ours(_)),
        "{info:?}"
    );
    guard.release_held().await;
}

/// A has the lock on servers {1, 2, 3}. Server 3 forgets it. B reaches {3, 4, 5} only, which is a majority.
#[tokio::test]
async fn a_server_that_forgot_a_lock_does_not_give_it_away() {
    const QUARANTINE: Duration = Duration::from_secs(12);
    let servers = Servers::start(5);
    let second: Vec<_> = servers
        .all
        .iter()
        .map(|server| Proxy::start(server.port()))
        .collect();
    let urls_of_b: Vec<_> = second.iter().map(Proxy::url).collect();
    let a = servers.manager().await;
    let b = LockManager::builder()
        .quarantine(QUARANTINE)
        .redlock(&urls_of_b)
        .await
        .expect("the servers are up");
    let early = b
        .try_acquire("other", options())
        .await
        .expect_err("all were started just now");
    let LockError::Unavailable { source, .. } = early else {
        panic!("not unavailable")
    };
    assert!(
        source.to_string().contains("may have forgotten locks"),
        "{source}"
    );
    assert_eq!(servers.holding("lock:other"), 0, "not even asked");
    let other = b
        .acquire("other", options().wait(HANG))
        .await
        .expect("up for long enough");
    other.release_held().await;

    servers.black_hole([3, 4]);
    let of_a = a.acquire("k", long()).await.expect("a majority answers");
    assert!(servers.all[3].get(KEY).is_none() && servers.all[4].get(KEY).is_none());
    for proxy in &second[..2] {
        proxy.black_hole(Scope::All);
    }
    servers.all[2].kill9();
    servers.all[2].restart();
    for _ in 0..3 {
        let of_b = b.try_acquire("k", options()).await;
        assert_fails!(of_b, LockError::Unavailable { .. });
    }
    for server in &servers.all[3..] {
        eventually(SOON, "let go", async || server.get(KEY).is_none()).await;
    }

    // Only the quarantine keeps B out: without one, both have the lock.
    let reckless = builder()
        .redlock(&urls_of_b[2..])
        .await
        .expect("three servers");
    let of_b = reckless
        .acquire("k", options())
        .await
        .expect("three of three");
    assert!(!of_a.lease().is_lost());
    assert!(
        fencing(&of_b) > fencing(&of_a),
        "the store can tell them apart"
    );
    drop((of_a, of_b));
    // The quarantine ends.
    let other = b
        .acquire("other", options().wait(HANG))
        .await
        .expect("three may vote again");
    other.release_held().await;
}

/// Connects with a quarantine.
async fn cautious(servers: &Servers, quarantine: u64) -> LockManager {
    let builder = LockManager::builder().quarantine(Duration::from_secs(quarantine));
    let locks = builder.redlock(servers.urls()).await;
    locks.expect("the servers are up")
}

async fn has_no_votes(locks: &LockManager) {
    static TRIES: AtomicU32 = AtomicU32::new(0);
    // Each try has a new key. The only server that votes keeps the key of a lost try for a moment. A next try for the same key
    // would be busy if that server's reply came before the silence of the others is known.
    let key = format!("try {}", TRIES.fetch_add(1, Ordering::Relaxed));
    let tried = locks.try_acquire(key, options()).await;
    let Err(LockError::Unavailable { source, .. }) = tried else {
        panic!("not unavailable: {tried:?}")
    };
    let reason = source.to_string();
    assert!(reason.contains("may have forgotten locks"), "{reason}");
}

/// A server with a clock that was set ahead, or back, since it was started.
#[tokio::test]
async fn a_server_that_reports_a_long_uptime_may_have_been_started_just_now() {
    let (clock, hour) = (ShiftedClock::new(), Duration::from_secs(3600));
    clock.set_back(hour);
    let start = |()| RedisServer::builder().clock(&clock).start();
    let all: Vec<_> = [(); 3].map(start).into();
    clock.set_right();
    eventually(HANG, "it believes that it is old", async || {
        all.iter().all(|server| uptime_of(server) >= 3600)
    })
    .await;
    let proxies = all.iter().map(|server| Proxy::start(server.port()));
    let proxies = proxies.collect();
    let servers = Servers { all, proxies };
    let locks = cautious(&servers, 60).await;
    has_no_votes(&locks).await;
    let checked = locks.check().await.expect_err("no majority");
    let LockError::Unavailable { source, .. } = checked else {
        panic!("not unavailable: {checked:?}")
    };
    assert!(
        source.to_string().contains("watched for another"),
        "{source}"
    );
    clock.set_back(hour * 2);
    eventually(HANG, "it was started in the future", async || {
        servers.all.iter().all(|server| uptime_of(server) < 0)
    })
    .await;
    has_no_votes(&cautious(&servers, 60).await).await;
}

fn uptime_of(server: &RedisServer) -> i64 {
    let info = server.info("server");
    let mut lines = info.lines();
    let uptime = lines.find_map(|line| line.strip_prefix("uptime_in_seconds:"));
    uptime.expect("there").trim().parse().expect("a number")
}

#[tokio::test]
async fn a_process_need_not_watch_what_others_have_watched_unless_it_was_lost() {
    const QUARANTINE: u64 = 8;
    let start = |()| RedisServer::builder().setting("appendonly", "yes").start();
    let all: Vec<_> = [(); 3].map(start).into();
    let proxies = all.iter().map(|server| Proxy::start(server.port()));
    let proxies = proxies.collect();
    let servers = Servers { all, proxies };
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
    // A manager that has not voted yet notices the loss, too, since the vote itself finds it.
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
    // A server that comes back with a file may lack the last locks.
    let marker = servers.all[0].get("__lock_core__:watched");
    for server in &servers.all[..2] {
        server.kill9();
        server.restart();
    }
    assert_eq!(servers.all[0].get("__lock_core__:watched"), marker);
    has_no_votes(&cautious(&servers, QUARANTINE).await).await;
}

#[tokio::test]
async fn what_short_lived_processes_have_watched_adds_up() {
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

#[tokio::test]
async fn lists_that_make_no_majority_are_refused() {
    let servers = Servers::start(3);
    let urls = servers.urls();
    let reason = async |list: &[&str]| match builder().redlock(list).await {
        Err(LockError::Invalid { reason, .. }) => reason.to_string(),
        other => panic!("{list:?}: not invalid: {other:?}"),
    };
    let [one, two, three] = [&*urls[0], &*urls[1], &*urls[2]];
    assert!(reason(&[]).await.contains("list three or five"));
    assert!(reason(&[one]).await.contains("list three or five"));
    assert!(reason(&[one, two]).await.contains("list three or five"));
    let fourth = "redis://127.0.0.1:1";
    assert!(
        reason(&[one, two, three, fourth])
            .await
            .contains("odd number")
    );
    assert!(reason(&[one, two, one]).await.contains("listed twice"));
    // This address goes past the proxy, so that only the server's own reply shows that both are the same server.
    let direct = servers.all[0].url();
    let same = reason(&[one, two, &direct]).await;
    assert!(same.contains("is the same server as"), "{same}");
    assert!(
        reason(&[one, two, "http://x"])
            .await
            .contains("not a scheme that")
    );
}

#[tokio::test]
async fn a_server_that_turns_out_to_be_another_one_has_no_second_vote() {
    let servers = Servers::start(3);
    let (first, second) = (&servers.all[0], &servers.all[1]);
    let hidden = Proxy::start(first.port());
    let urls = [first.url(), second.url(), hidden.url()];
    // At first it does not answer, so its state is unknown.
    hidden.black_hole(Scope::All);
    let locks = builder()
        .connect_timeout(Duration::from_secs(1))
        .command_timeout(Duration::from_secs(1))
        .redlock(&urls)
        .await
        .expect("two of three");
    hidden.pass();
    eventually(HANG, "it is found out", async || {
        let health = locks.check().await.expect("two of three");
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
async fn a_body_that_is_to_run_once_is_refused() {
    let servers = Servers::start(3);
    let locks = servers.manager().await;
    let before: Vec<_> = servers
        .all
        .iter()
        .map(|server| server.keys("lock:*"))
        .collect();
    let body = async |_| -> Result<(), String> { panic!("it must not run") };
    let options = OnceOptions::keep(Duration::from_secs(1));
    let refused = locks.run_once("k", options, body).await;
    invalid(&refused.expect_err("refused"), "the result of a run");
    let after: Vec<_> = servers
        .all
        .iter()
        .map(|server| server.keys("lock:*"))
        .collect();
    assert_eq!(before, after);
}

#[tokio::test]
async fn a_ttl_that_outlasts_the_quarantine_is_refused() {
    let servers = Servers::start(3);
    let locks = servers.manager().await;
    let minute = Duration::from_secs(60);
    let refused = locks.acquire("k", LockOptions::new(minute * 2)).await;
    invalid(&refused.expect_err("refused"), "max_ttl");
    // The default ttl is 10 s.
    let refused = builder().max_ttl(minute / 12).redlock(servers.urls()).await;
    invalid(&refused.expect_err("refused"), "ttl is 10s");
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

#[tokio::test]
async fn a_counter_that_is_out_of_bounds_costs_that_server_its_vote_and_no_more() {
    let servers = Servers::start(3);
    let locks = servers.manager().await;
    let far = "9007199254740000";
    servers.all[0].cli(&["SET", FENCE, far]);
    let guard = locks.acquire("k", options()).await.expect("two of three");
    assert!(fencing(&guard) < 9_007_199_254_740_000);
    guard.release_held().await;
    assert_eq!(servers.all[0].get(FENCE).as_deref(), Some(far));
    servers.all[1].cli(&["SET", FENCE, far]);
    let tried = locks.try_acquire("k", options()).await;
    assert_fails!(tried, LockError::Unavailable { .. });
}

#[tokio::test]
async fn a_server_with_a_wrong_clock_has_no_vote_and_moves_no_token() {
    let clocks = [(); 3].map(|()| ShiftedClock::new());
    let all: Vec<_> = clocks
        .iter()
        .map(|clock| RedisServer::builder().clock(clock).start())
        .collect();
    let proxies = all
        .iter()
        .map(|server| Proxy::start(server.port()))
        .collect();
    let servers = Servers { all, proxies };
    let locks = servers.manager().await;
    let hour = Duration::from_secs(3600);
    let mut last = 0;
    clocks[0].set_ahead(hour);
    for _ in 0..3 {
        let guard = locks
            .acquire("k", options())
            .await
            .expect("the others agree");
        assert!(fencing(&guard) > last, "tokens grow");
        last = fencing(&guard);
        guard.release_held().await;
    }
    clocks[0].set_back(hour);
    let guard = locks
        .acquire("k", options())
        .await
        .expect("the others agree");
    assert!(
        fencing(&guard) > last && fencing(&guard) < last + 120_000_000,
        "no token was moved"
    );
    guard.release_held().await;
    clocks[1].set_ahead(hour);
    let tried = locks.try_acquire("k", options()).await;
    assert_fails!(tried, LockError::Unavailable { .. });
    servers.nothing_is_left().await;
}

/// A number has to be above the server's counter and near its clock, so there is none until the clock has caught up.
#[tokio::test]
async fn clocks_that_were_set_back_are_named_until_they_are_right() {
    let clock = ShiftedClock::new();
    let start = |()| RedisServer::builder().clock(&clock).start();
    let all: Vec<_> = [(); 3].map(start).into();
    let proxies = all.iter().map(|server| Proxy::start(server.port()));
    let proxies = proxies.collect();
    let servers = Servers { all, proxies };
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
async fn a_lease_is_lost_when_a_majority_says_so_and_never_made_anew_then() {
    let servers = Servers::start(5);
    let locks = servers.manager().await;
    let guard = locks
        .acquire_free("k", LockOptions::new(Duration::from_secs(6)))
        .await;
    eventually(HANG, "all have it", async || servers.holding(KEY) == 5).await;
    for server in &servers.all[..3] {
        server.cli(&["DEL", KEY]);
    }
    let reason = timeout(HANG, guard.lease().lost()).await.expect("noticed");
    assert_eq!(reason, LeaseLost::TakenAway);
    // A request that made the key anew would be sent before these, on the same connections.
    for _ in 0..3 {
        let other = locks.acquire_free("other", options()).await;
        eventually!(HANG, "all have it" => servers.holding("lock:other") == 5);
        other.release_held().await;
    }
    assert!(servers.holding(KEY) <= 2);
    drop(guard);
    servers.nothing_is_left().await;
}

#[tokio::test]
async fn a_minority_that_lost_the_key_gets_it_again_and_gives_it_back() {
    let servers = Servers::start(5);
    let locks = servers.manager().await;
    let guard = locks
        .acquire_free("k", LockOptions::new(Duration::from_secs(3)))
        .await;
    eventually(HANG, "all have it", async || servers.holding(KEY) == 5).await;
    servers.all[0].cli(&["DEL", KEY]);
    servers.all[1].cli(&["SET", KEY, "another's", "PX", "60000"]);
    let value = servers.all[2].get(KEY);
    eventually(HANG, "made anew", async || servers.all[0].get(KEY) == value).await;
    assert!(!guard.lease().is_lost());
    assert_eq!(servers.all[1].get(KEY).as_deref(), Some("another's"));
    guard.release_held().await;
    servers.all[1].cli(&["DEL", KEY]);
    servers.nothing_is_left().await;
}

/// Takes the lock on the first three of five servers. Then the third restarts without its data, and the other two come back: they
/// were unreachable, or have been restarted as well.
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
    let options = LockOptions::new(Duration::from_secs(6)).wait(HANG);
    let guard = locks.acquire("k", options).await.expect("three of five");
    eventually(HANG, "all three have it", async || {
        servers.all[..3]
            .iter()
            .all(|server| server.get(KEY).is_some())
    })
    .await;
    servers.kill([2]);
    servers.all[2].restart();
    for index in [3, 4] {
        if are_killed {
            servers.all[index].restart();
        } else {
            // What it held back is lost.
            servers.proxies[index].reset();
            servers.proxies[index].pass();
        }
    }
    (servers, guard)
}

#[tokio::test]
async fn a_lease_goes_to_servers_that_never_had_it_when_one_that_had_it_restarts_without_data() {
    for (quarantine, are_killed) in [(0, false), (0, true), (3, false), (3, true)] {
        let (servers, guard) = is_left_on_two_of_five(quarantine, are_killed).await;
        eventually(HANG, "on all, or lost", async || {
            servers.holding(KEY) == 5 || guard.lease().is_lost()
        })
        .await;
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
async fn a_lease_outlives_servers_that_are_restarted_one_after_the_other() {
    let servers = Servers::start(3);
    let locks = LockManager::builder()
        .quarantine(Duration::from_secs(3))
        .redlock(servers.urls())
        .await
        .expect("the servers are up");
    let guard = locks
        .acquire("k", LockOptions::new(Duration::from_secs(6)).wait(HANG))
        .await
        .expect("up for long enough");
    eventually(HANG, "all have it", async || servers.holding(KEY) == 3).await;
    for server in &servers.all {
        server.kill9();
        server.restart();
        // The lock is made anew even while the server may not vote on new locks.
        eventually(HANG, "made anew", async || server.get(KEY).is_some()).await;
    }
    guard.lease().verify().await.expect("held all the time");
    guard.release_held().await;
    servers.nothing_is_left().await;
}

/// The vote is decided without one of the servers, before any request to that server was sent.
#[tokio::test]
async fn what_has_not_left_yet_when_a_vote_is_lost_does_not_leave_any_more() {
    let servers = Servers::start(3);
    servers.black_hole([2]);
    let locks = builder()
        .connect_timeout(Duration::from_secs(1))
        .redlock(servers.urls())
        .await
        .expect("two of three");
    servers.proxies[2].pass();
    servers.proxies[2].delay(Direction::Replies, Duration::from_millis(50));
    // Many rounds, since a manager does not connect again right after a connection failed.
    for round in 0..40 {
        for server in &servers.all[..2] {
            let key = format!("lock:k{round}");
            server.cli(&["SET", &key, "another's", "PX", "60000"]);
        }
        let tried = locks.try_acquire(format!("k{round}"), long()).await;
        assert!(tried.expect("answered").is_none());
    }
    // Any earlier request to the third server was sent before this one, on the same connection.
    let other = locks.acquire_free("other", long()).await;
    let third = &servers.all[2];
    eventually!(HANG, "it votes, too" => third.get("lock:other").is_some());
    eventually!(SOON, "nothing is left" => third.keys("lock:k*").is_empty());
    other.release_held().await;
}

#[tokio::test]
async fn operators_see_and_free_a_lock_on_all_servers() {
    let servers = Servers::start(5);
    let locks = servers.manager().await;
    assert!(locks.inspect("k").await.expect("answered").is_none());
    let guard = locks.acquire_free("k", options()).await;
    eventually(HANG, "all have it", async || servers.holding(KEY) == 5).await;
    servers.kill([4]);
    let info = locks
        .inspect("k")
        .await
        .expect("a majority answers")
        .expect("held");
    assert!(info.remaining.expect("it expires") > Duration::from_secs(5));
    let health = locks.check().await.expect("a majority works");
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

/// The server's side of a vote, tested with raw commands.
#[test]
fn a_server_accepts_a_number_above_its_counter_and_near_its_clock_for_a_lock_that_is_free_or_ours()
{
    /// In fencing tokens.
    const SECOND: u64 = 2_048_000;
    let server = RedisServer::start();
    let now = || -> u64 {
        let (seconds, micros): (u64, u64) =
            redis::from_redis_value(server.cli(&["TIME"])).expect("two numbers");
        seconds * SECOND + micros * 2048 / 1000
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
        "another one asks for it"
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

/// A retry cannot succeed there, and the other servers are released.
#[tokio::test]
async fn a_server_that_refuses_a_release_for_good_is_asked_three_times() {
    let servers = Servers::start(3);
    let builder = builder().command_timeout(Duration::from_secs(10));
    let locks = builder.redlock(servers.urls()).await;
    let locks = locks.expect("the servers are up");
    let guard = locks.acquire_free("k", long()).await;
    eventually(HANG, "all have it", async || servers.holding(KEY) == 3).await;
    let refuses = ["ACL", "SETUSER", "default", "resetkeys", "~__lock_core__:*"];
    servers.all[2].cli(&refuses);
    servers.proxies[2].clear_log();
    guard.release_held().await;
    // Waits for all tries.
    locks.shutdown(SOON).await;
    assert_eq!(servers.proxies[2].requests("EVALSHA"), 3);
    assert!(
        servers.all[..2]
            .iter()
            .all(|server| server.get(KEY).is_none())
    );
}

#[tokio::test]
async fn a_release_that_is_proven_after_the_lease_ran_out_reports_a_loss() {
    let servers = Servers::start(3);
    let builder = builder().connect_timeout(HANG).command_timeout(HANG);
    let locks = builder.redlock(servers.urls()).await;
    let locks = locks.expect("the servers are up");
    let ttl = Duration::from_secs(2);
    let options = LockOptions::new(ttl).without_renewal();
    let guard = locks.acquire_free("k", options).await;
    eventually(HANG, "all have it", async || servers.holding(KEY) == 3).await;
    // The keys are deleted, and the connections end without replies. Those of the next tries arrive when the lease has run out.
    for proxy in &servers.proxies {
        proxy.lose(
            Direction::Replies,
            Which::nth_of(1, "EVALSHA"),
            After::Reset,
        );
        proxy.delay(Direction::Replies, ttl);
    }
    let released = guard.release().await;
    let Err(LockError::Lost { reason, .. }) = released else {
        panic!("not lost: {released:?}")
    };
    assert_eq!(reason, LeaseLost::Expired);
}

#[tokio::test]
async fn a_key_that_one_server_finds_wrong_is_invalid_only_if_a_majority_does() {
    let servers = Servers::start(3);
    let locks = servers.manager().await;
    let no_lock = |index: usize| servers.all[index].cli(&["RPUSH", KEY, "a list"]);
    no_lock(0);
    locks.force_release("k").await.expect("by the other two");
    servers.kill([2]);
    let inspected = locks.inspect("k").await;
    unavailable(&inspected.expect_err("refused"), "no majority of the 3");
    no_lock(1);
    let inspected = locks.inspect("k").await;
    invalid(&inspected.expect_err("refused"), "no majority of the 3");
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
    eventually(HANG, "all have it", async || servers.holding(KEY) == 3).await;
    servers.proxies[2].lose(Direction::Requests, Which::every(), After::Silence);
    guard.release().await.expect("by a majority");
    assert!(servers.all[2].get(KEY).is_some());
    servers.proxies[2].pass();
    eventually!(SOON, "let go there, too" => servers.all[2].get(KEY).is_none());
}

/// Uses the counter of the contenders, which loses increments if two tasks are inside at once.
#[test]
fn two_processes_lose_no_increment_while_a_minority_dies_and_stands_still() {
    const TASKS: u32 = 3;
    // So many that neither process ends before the last server goes on: at a server that stands still, the last release of a process that
    // ends is lost, and that key blocks the other one while a second server is away.
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
    // One server dies. Of the others, one at a time stands still, and keeps its data.
    let reached = |part: u32| {
        eventually_blocking(HANG, "they go on", || counted() >= total * part / 8);
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
