//! The claims that hold for a lock on servers of every kind and number, and for every user.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use lock_core::{
    LeaseLost, LockError, LockGuard, LockManager, LockManagerBuilder, LockOptions, OnceOptions,
    Tls, inspect::HeldBy,
};
use lock_tests::{
    AskClients, Certificates, Cluster, Deployment, HANG, Kind, RedisServer, ReleaseHeld as _,
    SECOND, Sentinels, assert_fails, eventually, invalid, patient, rights_in_docs, run_in_a_row,
};
use tokio::{task::JoinSet, time::timeout};

use crate::waist::every_claim_holds;

/// Makes a test of each claim on a deployment.
macro_rules! the_suite_on {
    ($(#[$attribute:meta])* $module:ident: $start:expr) => {
        the_suite_on! { @claims $(#[$attribute])* $module $start =>
            a_lock_excludes_until_it_is_released
            a_waiter_is_granted_the_lock
            a_busy_process_gives_a_waiting_one_its_turn
            a_refusal_after_a_short_wait_says_when_the_lease_ends
            a_lease_is_renewed_beyond_its_ttl
            a_deleted_key_is_a_lost_lease
            a_forced_release_frees_the_lock_for_a_waiter
            a_holder_may_acquire_its_key_again
            verifying_restores_the_expiry_of_a_lease
            fencing_tokens_grow_although_the_data_are_lost
            an_acquire_after_a_release_in_the_background_finds_the_lock_free
            a_key_is_shared_until_an_exclusive_request_arrives
            as_many_hold_as_there_are_permits
            a_body_runs_once_for_callers_that_wait_or_call_later
            a_label_is_shown_instead_of_host_and_process
            its_backend_keeps_its_promises_to_the_driver
        }
    };
    (@claims $(#[$attribute:meta])* $module:ident $start:expr => $($claim:ident)*) => {
        the_suite_on! { @tests [$(#[$attribute])*] $module $start => $($claim)* }
    };
    (@tests $attributes:tt $module:ident $start:expr => $($claim:ident)*) => {
        mod $module {
            use super::*;

            fn start() -> Deployment {
                Deployment::from($start)
            }

            $(the_suite_on! { @test $attributes $claim })*
        }
    };
    (@test [$($attributes:tt)*] $claim:ident) => {
        #[tokio::test]
        $($attributes)*
        async fn $claim() {
            super::$claim(&start()).await;
        }
    };
}

the_suite_on! { distribution: RedisServer::start() }
the_suite_on! { #[ignore = "fetched by `tests/run --all`"] redis_6_2: server(Kind::Redis62) }
the_suite_on! { #[ignore = "fetched by `tests/run --all`"] redis_8_6: server(Kind::Redis86) }
the_suite_on! { #[ignore = "fetched by `tests/run --all`"] valkey_9: server(Kind::Valkey9) }
the_suite_on! { without_scripts: Deployment::without_scripts(RedisServer::start()) }
the_suite_on! { without_evalsha: Deployment::without_evalsha() }
the_suite_on! { least_privilege: least_privilege() }
the_suite_on! { sharded: Deployment::sharded() }
the_suite_on! { declared_keys: Deployment::of_declared_keys() }
the_suite_on! { tls: over_tls() }
the_suite_on! { sentinels: Sentinels::start() }
the_suite_on! { sentinels_with_passwords: sentinels_with_passwords() }
the_suite_on! { sentinels_over_tls: sentinels_over_tls() }
the_suite_on! { cluster: Cluster::start() }
the_suite_on! { cluster_over_tls: cluster_over_tls() }
the_suite_on! { #[ignore = "fetched by `tests/run --all`"] cluster_of_redis_6_2: Deployment::from(Cluster::of(Kind::Redis62)).without_messages() }
the_suite_on! { #[ignore = "fetched by `tests/run --all`"] cluster_of_valkey_9: Cluster::of(Kind::Valkey9) }
// All share one manager here, and no other client can delete the data or the expiry of a key.
the_suite_on! { @claims memory Deployment::in_memory() =>
    a_lock_excludes_until_it_is_released
    a_waiter_is_granted_the_lock
    a_refusal_after_a_short_wait_says_when_the_lease_ends
    a_lease_is_renewed_beyond_its_ttl
    a_deleted_key_is_a_lost_lease
    a_forced_release_frees_the_lock_for_a_waiter
    a_holder_may_acquire_its_key_again
    an_acquire_after_a_release_in_the_background_finds_the_lock_free
    a_key_is_shared_until_an_exclusive_request_arrives
    as_many_hold_as_there_are_permits
    a_body_runs_once_for_callers_that_wait_or_call_later
    its_backend_keeps_its_promises_to_the_driver
}

#[test]
#[ignore = "fetched by `tests/run --all`"]
fn each_kind_has_the_version_of_its_name() {
    for (kind, version) in [
        (Kind::Redis62, "redis_version:6.2."),
        (Kind::Redis86, "redis_version:8.6."),
        (Kind::Valkey9, "valkey_version:9."),
    ] {
        let server = RedisServer::builder().kind(kind).start();
        let info = server.info("server");
        assert!(info.contains(version), "{kind:?}: {info}");
    }
}

fn server(kind: Kind) -> RedisServer {
    RedisServer::builder().kind(kind).start()
}

/// Returns a server with a user who has the rights that the page for operators prints.
fn least_privilege() -> Deployment {
    let server = RedisServer::start();
    server.allow("locks", &rights_in_docs("locks"));
    Deployment::for_user(server, "locks", "word")
}

fn over_tls() -> Deployment {
    let certificates = Arc::new(Certificates::new());
    let server = RedisServer::builder().tls(&certificates, AskClients::Never);
    Deployment::over_tls(server.start(), &certificates)
}

fn sentinels_with_passwords() -> Sentinels {
    Sentinels::builder()
        .password("s3cret")
        .sentinel_password("watch")
        .start()
}

fn sentinels_over_tls() -> Deployment {
    let certificates = Arc::new(Certificates::new());
    let sentinels = Sentinels::builder().tls(&certificates).start();
    Deployment::from(sentinels).trusting(&certificates)
}

fn cluster_over_tls() -> Deployment {
    let certificates = Arc::new(Certificates::new());
    let cluster = Cluster::builder()
        .masters_alone(3)
        .tls(&certificates)
        .start();
    Deployment::from(cluster).trusting(&certificates)
}

async fn connect(servers: &Deployment) -> LockManager {
    if let Some(locks) = servers.memory() {
        return locks.clone();
    }
    connect_by(LockManager::builder(), servers).await
}

async fn connect_by(mut locks: LockManagerBuilder, servers: &Deployment) -> LockManager {
    if let Some(authority) = servers.authority() {
        locks = locks.tls(Tls::new().authority(authority));
    }
    let locks = locks.connect_timeout(HANG).connect(&servers.url()).await;
    locks.expect("it is up")
}

async fn acquire(locks: &LockManager, options: LockOptions) -> LockGuard {
    timeout(HANG, locks.acquire("k", options))
        .await
        .expect("no hang")
        .expect("free, or soon")
}

fn fencing_token(guard: &LockGuard) -> u64 {
    guard.lease().fencing_token().into()
}

async fn a_lock_excludes_until_it_is_released(servers: &Deployment) {
    let (locks, others) = (connect(servers).await, connect(servers).await);
    let guard = acquire(&locks, patient()).await;
    assert!(
        others
            .try_acquire("k", patient())
            .await
            .expect("a reply")
            .is_none()
    );
    let expiry = servers.pttl("lock:k").expect("the key expires");
    assert!(expiry <= SECOND * 10, "{expiry:?}");
    guard.release_held().await;
    assert_eq!(servers.get("lock:k"), None);
    let guard = others.try_acquire("k", patient()).await.expect("a reply");
    guard.expect("free").release_held().await;
}

async fn a_waiter_is_granted_the_lock(servers: &Deployment) {
    let first = acquire(&connect(servers).await, patient()).await;
    let before = fencing_token(&first);
    let others = connect(servers).await;
    let health = others.check().await.expect("a reply");
    for server in &health.servers {
        assert_eq!(server.scripts, servers.runs_scripts(), "{server:?}");
        let notifies = servers.grants_by().is_some();
        assert_eq!(server.notifies, notifies, "{server:?}");
    }
    let waiting = tokio::spawn(async move { acquire(&others, patient()).await });
    it_waits(servers).await;
    let messages = || servers.grants_by().map(|command| servers.calls(command));
    let before_release = messages();
    first.release_held().await;
    let second = waiting.await.expect("granted");
    assert!(fencing_token(&second) > before);
    assert!(
        before_release.is_none() || messages() > before_release,
        "by a message"
    );
    second.lease().verify().await.expect("held");
    second.release_held().await;
}

/// Four tasks of one process take turns of 2 ms; turns are counted, since time depends on the machine.
async fn a_busy_process_gives_a_waiting_one_its_turn(servers: &Deployment) {
    gives_a_turn(connect(servers).await, connect(servers).await).await;
}

async fn gives_a_turn(busy: LockManager, other: LockManager) {
    // Each batch lasts 20 ms, and is usually followed by a poll.
    const MOST: u32 = 500;
    let turns = Arc::new(AtomicU32::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..4 {
        let (busy, turns) = (busy.clone(), turns.clone());
        tasks.spawn(async move {
            while turns.load(SeqCst) < MOST {
                let guard = acquire(&busy, patient()).await;
                turns.fetch_add(1, SeqCst);
                tokio::time::sleep(Duration::from_millis(2)).await;
                guard.release_held().await;
            }
        });
    }
    eventually!(HANG, "it is busy" => turns.load(SeqCst) > 4);
    let guard = acquire(&other, patient()).await;
    let had = turns.swap(MOST, SeqCst);
    guard.release_held().await;
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no panic");
    }
    assert!(had < MOST, "the other process waited for all turns");
}

/// A process that polls leaves a mark, which processes that are notified of grants obey as well.
#[tokio::test]
async fn a_busy_process_gives_those_that_poll_their_turn() {
    let server = RedisServer::start();
    let rights = "SETUSER deaf on >word ~* &* +@all -subscribe";
    let words: Vec<&str> = ["ACL"].into_iter().chain(rights.split(' ')).collect();
    server.cli(&words);
    let urls = [
        server.url(),
        format!("{}?protocol=2", server.url()),
        server.url_as("deaf", "word"),
    ];
    let locks = async |url: &str| LockManager::connect(url).await.expect("it is up");
    for [busy, other] in [[0, 1], [0, 2], [1, 1], [1, 0], [2, 2], [2, 0]] {
        gives_a_turn(locks(&urls[busy]).await, locks(&urls[other]).await).await;
    }
}

async fn a_refusal_after_a_short_wait_says_when_the_lease_ends(servers: &Deployment) {
    // Less than 10 s, the longest `retry_after` of an error.
    let ttl = SECOND * 8;
    let guard = acquire(&connect(servers).await, LockOptions::new(ttl)).await;
    let others = connect(servers).await;
    for wait in [Duration::ZERO, Duration::from_millis(20)] {
        let options = LockOptions::new(SECOND * 600).wait(wait);
        let Err(LockError::Busy { retry_after, .. }) = others.acquire("k", options).await else {
            panic!("it is held");
        };
        let left = retry_after.expect("it expires");
        // The lease is renewed after a third of its ttl.
        assert!(left > ttl / 4 && left <= ttl, "after {wait:?}: {left:?}");
    }
    guard.release_held().await;
}

/// Checks that shared locks and permits are refused where scripts may not run; returns `false` where they may.
async fn is_refused(servers: &Deployment, locks: &LockManager, options: LockOptions) -> bool {
    if servers.runs_scripts() {
        return false;
    }
    let refused = locks.acquire("k", options).await;
    invalid(&refused.expect_err("refused"), "need scripts");
    assert_eq!(servers.get("lock:k"), None);
    true
}

async fn a_key_is_shared_until_an_exclusive_request_arrives(servers: &Deployment) {
    let (one, other) = (connect(servers).await, connect(servers).await);
    if is_refused(servers, &one, patient().shared()).await {
        return;
    }
    let first = acquire(&one, patient().shared()).await;
    let second = acquire(&other, patient().shared()).await;
    assert_eq!(fencing_token(&first), fencing_token(&second));
    let before = fencing_token(&first);
    let waiting = tokio::spawn({
        let other = other.clone();
        async move { acquire(&other, patient()).await }
    });
    let is_refused = async |options: LockOptions| {
        let tried = one.try_acquire("k", options).await;
        tried.expect("a reply").is_none()
    };
    // Clients that poll do not hold back new readers.
    if servers.queues_waiters() {
        eventually!(HANG, "no reader is admitted" => is_refused(patient().shared()).await);
    }
    first.release_held().await;
    assert!(!waiting.is_finished());
    second.release_held().await;
    let alone = waiting.await.expect("granted");
    assert!(fencing_token(&alone) > before);
    assert!(is_refused(patient().shared()).await && is_refused(patient()).await);
    let reading = tokio::spawn({
        let one = one.clone();
        async move { acquire(&one, patient().shared()).await }
    });
    alone.release_held().await;
    let reader = reading.await.expect("granted");
    assert!(fencing_token(&reader) > before);
    reader.lease().verify().await.expect("held");
    reader.release_held().await;
}

async fn as_many_hold_as_there_are_permits(servers: &Deployment) {
    let (one, other) = (connect(servers).await, connect(servers).await);
    let permits = || patient().permits(2);
    if is_refused(servers, &one, permits()).await {
        return;
    }
    let first = acquire(&one, permits()).await;
    let second = acquire(&other, permits()).await;
    assert_eq!(first.lease().permit(), Some(0));
    assert_eq!(second.lease().permit(), Some(1));
    let third = one.try_acquire("k", permits()).await;
    assert!(third.expect("a reply").is_none());
    let waiting = tokio::spawn(async move { acquire(&one, permits()).await });
    second.lease().verify().await.expect("held");
    second.release_held().await;
    let next = waiting.await.expect("granted");
    assert_eq!(next.lease().permit(), Some(1));
    assert!(fencing_token(&next) > fencing_token(&first));
    first.release_held().await;
    next.release_held().await;
    assert_eq!(servers.get("lock:k"), None);
}

async fn it_waits(servers: &Deployment) {
    if servers.queues_waiters() {
        eventually!(HANG, "it is in the wait queue" => servers.has_queue("lock:k"));
        if servers.grants_by() == Some("spublish") {
            // In a cluster, a check follows the subscription at once. It might acquire the lock itself, right after the release.
            eventually!(HANG, "it has checked its position" => servers.has_beats("lock:k"));
        }
        return;
    }
    // Each poll reads the key.
    let before = servers.calls("get");
    let asked = async || servers.calls("get") >= before + 3;
    eventually(HANG, "it has polled several times", asked).await;
}

async fn a_body_runs_once_for_callers_that_wait_or_call_later(servers: &Deployment) {
    let (one, other) = (connect(servers).await, connect(servers).await);
    let options = || OnceOptions::keep(SECOND * 60).ttl(SECOND * 2).wait(HANG);
    if !servers.runs_scripts() {
        let body = async |_| -> Result<(), String> { panic!("it must not run") };
        let refused = one.run_once("k", options(), body).await;
        invalid(&refused.expect_err("refused"), "need scripts");
        return assert_eq!(servers.get("lock:k"), None);
    }
    let run = async |locks: &LockManager, value: &str| {
        let body = async |_| Ok::<_, String>(value.to_owned());
        let ran = timeout(HANG, locks.run_once("k", options(), body)).await;
        ran.expect("no hang").expect("a reply").expect("a value")
    };
    let guard = acquire(&one, patient()).await;
    let waits = async {
        let results = tokio::join!(run(&other, "a"), run(&one, "b"), run(&other, "c"));
        let first = results.0;
        assert!(first == results.1 && first == results.2);
        first
    };
    let released = async {
        it_waits(servers).await;
        guard.release_held().await;
    };
    let (first, ()) = tokio::join!(waits, released);
    assert_eq!(run(&one, "later").await, first);
    one.forget("k").await.expect("a reply");
    assert_eq!(run(&other, "again").await, "again");
    assert_eq!(run(&one, "later").await, "again");
    // In memory, a stored result counts as an entry of the key.
    one.forget("k").await.expect("a reply");
    eventually!(HANG, "the lock is free" => servers.get("lock:k").is_none());
}

/// One label contains colons, which also separate the parts of an owner token.
async fn a_label_is_shown_instead_of_host_and_process(servers: &Deployment) {
    const LEADER: &str = "10.0.3.7:8080";
    const FOLLOWER: &str = "[fd00::7]:8080";
    let labelled = async |label| connect_by(LockManager::builder().label(label), servers).await;
    let locks = connect(servers).await;
    let (leader, follower) = (labelled(LEADER).await, labelled(FOLLOWER).await);
    let names = servers.names_of_connections("k");
    // Some users may not name their connections.
    if !names.is_empty() {
        assert!(names.iter().any(|name| name.ends_with(LEADER)), "{names:?}");
    }
    // The holders, sorted, and the queue.
    let shown = async |key: &str| {
        let info = locks.inspect(key).await.expect("a reply").expect("held");
        let leases = info.leases.iter().map(|lease| lease.process.to_string());
        let queue = info.queue.iter().map(|waiter| waiter.process.to_string());
        let (mut leases, queue) = (leases.collect::<Vec<_>>(), queue.collect::<Vec<_>>());
        assert!(leases.contains(&info.holder.to_string()), "{leases:?}");
        leases.sort();
        (leases, queue)
    };
    let held_by = async |key: &str, options: LockOptions| {
        let busy = locks.acquire(key, options.no_wait()).await;
        let busy = busy.map(drop).expect_err("held");
        let Some(HeldBy::OtherProcess(holder)) = busy.held_by() else {
            panic!("{busy:?}");
        };
        assert!([LEADER, FOLLOWER].contains(&&*holder), "{holder}");
        let says = format!("the lock `{key}` is busy: the process {holder} holds it");
        assert_eq!(busy.to_string(), says);
    };
    let guard = acquire(&leader, patient()).await;
    assert_eq!(shown("k").await.0, [LEADER]);
    match locks.list("").next().await.expect("a lock") {
        Ok(listed) => assert_eq!(listed.info.holder.to_string(), LEADER),
        // Users need not have the right to list locks.
        Err(error) => assert!(error.to_string().contains("+scan"), "{error}"),
    }
    let waiting = tokio::spawn({
        let follower = follower.clone();
        async move { acquire(&follower, patient()).await }
    });
    it_waits(servers).await;
    if servers.grants_by().is_some() {
        assert_eq!(shown("k").await.1, [FOLLOWER]);
    }
    guard.release_held().await;
    let guard = waiting.await.expect("granted");
    assert_eq!(shown("k").await, (vec![FOLLOWER.to_owned()], vec![]));
    if !servers.runs_scripts() {
        return guard.release_held().await;
    }
    held_by("k", patient()).await;
    guard.release_held().await;
    for (key, options, other) in [
        ("s", patient().shared(), patient()),
        ("p", patient().permits(2), patient().permits(2)),
    ] {
        let both = [
            leader.acquire(key, options.clone()),
            follower.acquire(key, options),
        ];
        let [first, second] = both.map(async |one| timeout(HANG, one).await.expect("no hang"));
        let (first, second) = tokio::join!(first, second);
        assert_eq!(
            shown(key).await,
            (vec![LEADER.to_owned(), FOLLOWER.to_owned()], vec![])
        );
        held_by(key, other).await;
        first.expect("free").release_held().await;
        second.expect("free").release_held().await;
    }
}

async fn its_backend_keeps_its_promises_to_the_driver(servers: &Deployment) {
    every_claim_holds(&connect(servers).await).await;
}

async fn a_lease_is_renewed_beyond_its_ttl(servers: &Deployment) {
    let ttl = SECOND * 4;
    let guard = acquire(&connect(servers).await, LockOptions::new(ttl)).await;
    let token = servers.get("lock:k");
    let end = servers.time("lock:k") + ttl * 2;
    eventually(HANG, "two ttls are over", async || {
        assert_eq!(servers.get("lock:k"), token, "no other process gets it");
        servers.time("lock:k") > end
    })
    .await;
    guard.lease().verify().await.expect("held");
    guard.release_held().await;
}

async fn a_deleted_key_is_a_lost_lease(servers: &Deployment) {
    let guard = acquire(&connect(servers).await, LockOptions::new(SECOND * 6)).await;
    servers.delete("lock:k");
    let reason = timeout(HANG, guard.lease().lost()).await.expect("noticed");
    assert_eq!(reason, LeaseLost::TakenAway);
    let released = guard.release().await;
    assert_fails!(released, LockError::Lost { .. });
    assert_eq!(servers.get("lock:k"), None, "it is not recreated");
}

async fn a_holder_may_acquire_its_key_again(servers: &Deployment) {
    let locks = connect(servers).await;
    locks
        .run("k", patient(), async |lease| {
            let again = acquire(&locks, patient()).await;
            assert_eq!(again.lease().fencing_token(), lease.fencing_token());
            again.release_held().await;
            lease.verify().await.expect("it is still held");
        })
        .await
        .expect("free");
    assert_eq!(servers.get("lock:k"), None);
}

/// An operator releases the lock, which is shared where the deployment has shared locks.
async fn a_forced_release_frees_the_lock_for_a_waiter(servers: &Deployment) {
    let (one, other) = (connect(servers).await, connect(servers).await);
    let options = LockOptions::new(SECOND * 6);
    let options = if servers.runs_scripts() {
        options.shared()
    } else {
        options
    };
    let guard = acquire(&one, options).await;
    let waiting = tokio::spawn(async move { acquire(&other, patient()).await });
    it_waits(servers).await;
    let seen = one.inspect("k").await.expect("a reply").expect("held");
    assert_eq!(seen.holders, 1);
    let messages = || servers.grants_by().map(|command| servers.calls(command));
    let before = messages();
    one.force_release("k").await.expect("a reply");
    let next = waiting.await.expect("granted");
    assert!(before.is_none() || messages() > before, "by a message");
    assert!(fencing_token(&next) > fencing_token(&guard));
    let reason = timeout(HANG, guard.lease().lost()).await.expect("noticed");
    assert_eq!(reason, LeaseLost::TakenAway);
    next.release_held().await;
}

/// An operator may remove the expiry by mistake.
async fn verifying_restores_the_expiry_of_a_lease(servers: &Deployment) {
    const TTL: Duration = Duration::from_secs(600);
    let guard = acquire(&connect(servers).await, LockOptions::new(TTL)).await;
    let server = servers.server_of("lock:k");
    assert_eq!(server.cli(&["PERSIST", "lock:k"]), redis::Value::Int(1));
    guard.lease().verify().await.expect("held");
    let left = server.pttl("lock:k").expect("an expiry");
    assert!(left > TTL / 2 && left <= TTL, "{left:?}");
    guard.lease().verify().await.expect("held");
    guard.release_held().await;
    assert_eq!(servers.get("lock:k"), None);
}

async fn fencing_tokens_grow_although_the_data_are_lost(servers: &Deployment) {
    let locks = connect(servers).await;
    let mut last = 0;
    for round in 0..6 {
        if round % 2 == 1 {
            servers.flush_all();
        }
        // The holder's process knows the last token; a new process knows none.
        for locks in [&locks, &connect(servers).await] {
            let guard = acquire(locks, patient()).await;
            let next = fencing_token(&guard);
            assert!(next > last, "{next} after {last}");
            last = next;
            guard.release_held().await;
        }
    }
}

async fn an_acquire_after_a_release_in_the_background_finds_the_lock_free(servers: &Deployment) {
    let locks = connect(servers).await;
    run_in_a_row(&locks, "k", 50).await;
    locks.shutdown(HANG).await;
    assert_eq!(servers.get("lock:k"), None);
}
