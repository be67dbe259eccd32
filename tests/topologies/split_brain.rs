//! A primary that sentinels have replaced, and that still takes writes: it was stopped, or cut off from the sentinels alone.
//! Within a bounded time all processes have left it, and exclude each other again.

use std::time::Duration;

use lock_core::{LockManager, LockOptions};
use lock_tests::{
    AcquireFree as _, Direction, HANG, Holders, Load, Proxy, RedisServer, ReleaseHeld as _, SECOND,
    Sentinels, connect, eventually,
    history::{Moment, Window},
};

use crate::sentinel::Puppet;

const KEY: &str = "k";
const TTL: Duration = Duration::from_secs(2);
const PROCESSES: u32 = 3;

/// Many times what it takes (1.2 s), for a machine busy with a build.
const SOON: Duration = Duration::from_secs(30);

/// The number of grants to each process after the fail-over.
const GRANTS: usize = 100;

fn start() -> Sentinels {
    let sentinels = Sentinels::builder().user("app", "word", "~* &* +@all");
    let sentinels = sentinels.start();
    sentinels.keep_a_replica_behind();
    sentinels
}

/// Waits for the part of a fail-over in which its leader names the old primary with the epoch of the new one, and prolongs it.
async fn the_leader_is_behind(sentinels: &Sentinels, old: &RedisServer) {
    eventually(SOON, "the epoch is new", async || {
        // On a slow machine it may be over before it was seen.
        sentinels.differ_at_one_epoch() || sentinels.named().is_some_and(|now| now != old.port())
    })
    .await;
    sentinels.prolong_fail_over();
}

/// The number of managers that are subscribed to grants at a server.
fn listeners(server: &RedisServer) -> usize {
    let channels = server.cli(&["PUBSUB", "CHANNELS", "__lock_core__:grants:*"]);
    let channels: Vec<String> = redis::from_redis_value(channels).expect("names");
    channels.len()
}

fn new_primary<'a>(sentinels: &'a Sentinels, old: &RedisServer) -> &'a RedisServer {
    let is_new = |server: &&RedisServer| {
        server.port() != old.port() && server.info("replication").contains("role:master")
    };
    let new = sentinels.servers().iter().find(is_new);
    new.expect("the sentinels promoted one")
}

async fn is_used_by(primary: &RedisServer, managers: usize) {
    eventually!(SOON, "all have gone to the new primary" => listeners(primary) == managers);
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
async fn a_process_that_starts_in_a_fail_over_goes_where_the_others_are() {
    let sentinels = start();
    let old = sentinels.primary();
    let early = connect(&sentinels.url()).await;
    sentinels.cut_off(old);
    the_leader_is_behind(&sentinels, old).await;
    let late = connect(&sentinels.url()).await;
    let new = new_primary(&sentinels, old);
    for locks in [&early, &late] {
        eventually(SOON, "it takes locks at the new primary", async || {
            let guard = locks.acquire_free("moved", options()).await;
            let is_there = new.get("lock:moved").is_some();
            // It may be lost: the manager leaves the old primary at this moment.
            guard.release().await.ok();
            is_there
        })
        .await;
    }
    exclude_each_other(&early, &late).await;
    assert_eq!(
        listeners(old),
        0,
        "the old primary is left, though it takes writes"
    );
}

/// The primary is cut off from the sentinels alone. The nearest sentinel missed the fail-over, and the others reply later.
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
    // A sentinel that is late on a busy machine is waited for.
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
    assert!(new.get("lock:late").is_some(), "at the new primary at once");
    guard.release_held().await;
    eventually(SOON, "the other one has left the old primary", async || {
        listeners(old) == 0 && listeners(new) == 2
    })
    .await;
    exclude_each_other(&early, &late).await;
}

/// Three processes compete for a key. Returns once two holders at a time would be a defect.
async fn are_together_again(sentinels: &Sentinels, replace: impl AsyncFnOnce(&RedisServer)) {
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
    replace(old).await;
    is_used_by(new_primary(sentinels, old), PROCESSES as usize).await;
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

#[tokio::test]
async fn all_leave_a_primary_that_was_cut_off_from_the_sentinels_alone() {
    let sentinels = start();
    let replace = async |old: &RedisServer| {
        sentinels.cut_off(old);
        the_leader_is_behind(&sentinels, old).await;
    };
    are_together_again(&sentinels, replace).await;
}

#[tokio::test]
async fn all_leave_a_primary_that_was_stopped_and_goes_on_in_the_fail_over() {
    let sentinels = start();
    let replace = async |old: &RedisServer| {
        // No sentinel makes it a replica when it goes on.
        sentinels.cut_off(old);
        old.stop();
        the_leader_is_behind(&sentinels, old).await;
        old.cont();
    };
    are_together_again(&sentinels, replace).await;
}
