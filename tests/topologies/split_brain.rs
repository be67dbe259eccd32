//! A primary that sentinels have replaced but that still accepts writes, because it was stopped or is cut off from the sentinels.
//! Within a bounded time, all processes leave it and exclude each other again.

use std::time::Duration;

use lock_core::{LockManager, LockOptions};
use lock_tests::{
    AcquireFree as _, Direction, HANG, Holders, Load, Proxy, RedisServer, ReleaseHeld as _, SECOND,
    Sentinels, connect, eventually,
    history::{Moment, Window},
};

use crate::sentinel::{Puppet, listeners};

const KEY: &str = "k";
const TTL: Duration = Duration::from_secs(2);
const PROCESSES: u32 = 3;

/// Many times the usual 1.2 s, for a machine that is busy with a build.
const SOON: Duration = Duration::from_secs(30);

/// The number of grants to each process after the fail-over.
const GRANTS: usize = 100;

fn start() -> Sentinels {
    let sentinels = Sentinels::builder().user("app", "word", "~* &* +@all");
    let sentinels = sentinels.start();
    sentinels.keep_a_replica_behind();
    sentinels
}

/// Waits for the phase of a fail-over in which its leader names the old primary with the epoch of the new one, and prolongs it.
async fn the_leader_is_stale(sentinels: &Sentinels, old: &RedisServer) {
    eventually(SOON, "the epoch is new", async || {
        // On a slow machine, the phase may end unseen.
        sentinels.differ_at_one_epoch() || sentinels.named().is_some_and(|now| now != old.port())
    })
    .await;
    sentinels.prolong_fail_over();
}

fn new_primary<'a>(sentinels: &'a Sentinels, old: &RedisServer) -> &'a RedisServer {
    let is_new = |server: &&RedisServer| {
        server.port() != old.port() && server.info("replication").contains("role:master")
    };
    let new = sentinels.servers().iter().find(is_new);
    new.expect("the sentinels promoted one")
}

fn options() -> LockOptions {
    LockOptions::new(SECOND * 30).wait(HANG)
}

/// Two managers exclude each other.
async fn exclude_each_other(one: &LockManager, other: &LockManager) {
    for (holder, second) in [(one, other), (other, one)].repeat(10) {
        let guard = holder.acquire_free("both", options()).await;
        let refused = second.try_acquire("both", options()).await.expect("up");
        assert!(refused.is_none(), "two holders");
        guard.release_held().await;
    }
}

#[tokio::test]
async fn a_process_that_starts_during_a_fail_over_uses_the_primary_of_the_others() {
    let sentinels = start();
    let old = sentinels.primary();
    let early = connect(&sentinels.url()).await;
    sentinels.cut_off(old);
    the_leader_is_stale(&sentinels, old).await;
    let late = connect(&sentinels.url()).await;
    let new = new_primary(&sentinels, old);
    for locks in [&early, &late] {
        eventually(SOON, "it acquires locks on the new primary", async || {
            let guard = locks.acquire_free("moved", options()).await;
            let is_there = new.get("lock:moved").is_some();
            // It may be lost, if the manager leaves the old primary now.
            guard.release().await.ok();
            is_there
        })
        .await;
    }
    exclude_each_other(&early, &late).await;
    assert_eq!(listeners(old), 0, "no process uses the old primary");
}

/// The primary is cut off from the sentinels. The nearest sentinel missed the fail-over, and the others reply later.
#[tokio::test]
async fn a_near_sentinel_that_missed_the_fail_over_keeps_no_process_at_the_old_primary() {
    let sentinels = Sentinels::builder().user("app", "word", "~* &* +@all");
    let sentinels = sentinels.start();
    let old = sentinels.primary();
    let near = Puppet::naming(old, 0);
    let far: Vec<_> = sentinels.sentinels()[1..]
        .iter()
        .map(|sentinel| Proxy::start(sentinel.port()))
        .collect();
    for proxy in &far {
        proxy.delay(Direction::Replies, Duration::from_millis(130));
    }
    let hosts = [near.port(), far[0].port(), far[1].port()].map(|port| format!("127.0.0.1:{port}"));
    let (hosts, service) = (hosts.join(","), sentinels.service());
    let url = format!("redis+sentinel://app:word@{hosts}/{service}");
    // Long, since a sentinel may be slow on a busy machine.
    let manager = async || {
        LockManager::builder()
            .connect_timeout(HANG)
            .connect(&url)
            .await
    };
    let early = manager().await.expect("up");
    early
        .acquire_free("k", options())
        .await
        .release_held()
        .await;
    sentinels.cut_off(old);
    sentinels.failed_over(old);
    let new = sentinels.primary();
    let late = manager().await.expect("up");
    let guard = late.acquire_free("late", options()).await;
    assert!(
        new.get("lock:late").is_some(),
        "it uses the new primary at once"
    );
    guard.release_held().await;
    eventually(SOON, "the other one has left the old primary", async || {
        listeners(old) == 0 && listeners(new) == 2
    })
    .await;
    exclude_each_other(&early, &late).await;
}

#[tokio::test]
async fn all_leave_a_primary_that_was_stopped_and_continues_during_the_fail_over() {
    let sentinels = start();
    let load = Load {
        keys: vec![KEY.to_owned()],
        processes: PROCESSES,
        tasks: 2,
        ttl: TTL,
        hold: Duration::from_millis(5),
    };
    let program = env!("CARGO_BIN_EXE_holder");
    let mut holders = Holders::start(program, &sentinels.url(), &load);
    holders.all_get_it(5, Moment::now(), SOON).await;
    let (old, from) = (sentinels.primary(), Moment::now());
    // No sentinel demotes it when it continues.
    sentinels.cut_off(old);
    old.stop();
    the_leader_is_stale(&sentinels, old).await;
    old.cont();
    let new = new_primary(&sentinels, old);
    eventually!(SOON, "all use the new primary" => listeners(new) == PROCESSES as usize);
    let together = Moment::now();
    eprintln!("{:.2?} until all use the new primary", together.since(from));
    // A lease of the old primary, which the new one does not know, may last until then.
    let to = together.after(TTL);
    holders.all_get_it(GRANTS, to, SOON).await;
    let history = holders.stop();
    let window = Window { from, to };
    let before = history.overlaps(&[]).len();
    eprintln!("{before} times two holders, while the sentinels failed over");
    assert!(history.overlaps(&[window]).is_empty());
}
