//! Locks while the slot of their key moves from one master of a cluster to another.

use std::time::Duration;

use lock_core::LockOptions;
use lock_tests::{
    Cluster, HANG, Holders, Kind, Load, Migration, RedisServer, ReleaseHeld as _, connect,
    eventually, history::Moment, options, run_in_a_row, slot_of,
};

const KEY: &str = "k";
const FULL_KEY: &str = "lock:k";

/// The number of times that the slot moves.
const ROUNDS: u32 = 6;

/// The number of times that each process has to get the lock between two moves.
const GRANTS: usize = 5;

#[tokio::test]
async fn all_waiters_follow_a_slot_that_moves_and_exclude_each_other() {
    follow(&Cluster::start()).await;
}

#[tokio::test]
#[ignore = "fetched by `tests/run --all`"]
async fn all_waiters_follow_a_slot_of_valkey_that_moves_and_exclude_each_other() {
    follow(&Cluster::of(Kind::Valkey9)).await;
}

async fn follow(cluster: &Cluster) {
    let mut holders = Holders::start(
        env!("CARGO_BIN_EXE_holder"),
        &cluster.url(),
        &Load {
            keys: vec![KEY.to_owned()],
            processes: 2,
            tasks: 4,
            ttl: Duration::from_secs(5),
            hold: Duration::from_millis(10),
        },
    );
    for _ in 0..ROUNDS {
        holders.all_get_it(GRANTS, Moment::now(), HANG).await;
        let migration = to_another_master(cluster);
        migration.open();
        migration.move_keys();
        migration.close();
    }
    holders.all_get_it(GRANTS, Moment::now(), HANG).await;
    let history = holders.stop();
    // A move loses no data, so no overlap is excused.
    let overlaps = history.overlaps(&[]);
    assert!(overlaps.is_empty(), "{overlaps:#?}");
    let regressions = history.regressions(&[]);
    assert!(regressions.is_empty(), "{regressions:#?}");
}

#[tokio::test]
async fn a_lease_is_renewed_and_released_where_its_slot_has_gone() {
    let cluster = Cluster::start();
    let locks = connect(&cluster.url()).await;
    let ttl = Duration::from_secs(6);
    let guard = locks.acquire(KEY, LockOptions::new(ttl)).await;
    let guard = guard.expect("free");
    let token = cluster.node_of(FULL_KEY).get(FULL_KEY);
    assert!(token.is_some());
    let migration = to_another_master(&cluster);
    let target = migration.target();
    migration.open();
    let moved = migration.move_keys();
    assert!(moved.iter().any(|key| key == FULL_KEY), "{moved:?}");
    migration.close();
    assert_eq!(target.get(FULL_KEY), token);
    let before = target.expires_at(FULL_KEY);
    assert!(before.is_some(), "it expires");
    eventually!(HANG, "it is renewed" => target.expires_at(FULL_KEY) > before);
    guard.lease().verify().await.expect("held");
    guard.release_held().await;
    assert_eq!(target.get(FULL_KEY), None);
}

/// The key has moved, and the slot has gone or is going.
#[tokio::test]
async fn a_release_follows_a_redirect() {
    let cluster = Cluster::start();
    let locks = connect(&cluster.url()).await;
    // A renewal would find out where the slot is.
    let options = || options().without_renewal();
    for is_closed in [true, false] {
        let guard = locks.acquire(KEY, options()).await.expect("free");
        let migration = to_another_master(&cluster);
        let target = migration.target();
        let before = target.calls("asking");
        migration.open();
        migration.move_keys();
        if is_closed {
            migration.close();
            guard.release_held().await;
        } else {
            let releasing = tokio::spawn(guard.release());
            eventually!(HANG, "the release was redirected" => target.calls("asking") > before);
            migration.close();
            // It may give up waiting for the move, and continues in the background.
            drop(releasing.await.expect("no panic"));
        }
        eventually!(HANG, "it is released" => target.get(FULL_KEY).is_none());
    }
}

/// The release is redirected, and so is the acquire behind it.
#[tokio::test]
async fn the_next_try_finds_the_lock_free_behind_a_release_in_the_background_whose_slot_has_gone() {
    let cluster = Cluster::start();
    let locks = connect(&cluster.url()).await;
    for _ in 0..ROUNDS {
        let body = async |_| {
            let migration = to_another_master(&cluster);
            migration.open();
            migration.move_keys();
            migration.close();
        };
        let options = options().release_in_background();
        locks.run(KEY, options, body).await.expect("free");
        run_in_a_row(&locks, KEY, 3).await;
    }
    locks.shutdown(HANG).await;
    assert_eq!(cluster.node_of(FULL_KEY).get(FULL_KEY), None);
}

fn to_another_master(cluster: &Cluster) -> Migration<'_> {
    let source = cluster.node_of(FULL_KEY).port();
    let masters = cluster.masters();
    let mut others = masters.into_iter().filter(|node| node.port() != source);
    let target: &RedisServer = others.next().expect("three masters");
    cluster.migration(slot_of(FULL_KEY), target)
}
