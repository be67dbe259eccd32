//! Locks while the slot of their key moves from one master of a cluster to another.

use std::time::Duration;

use lock_tests::{
    Cluster, HANG, Holders, Kind, Load, connect, history::Moment, options, run_in_a_row,
};

use crate::cluster::to_another_master;

const KEY: &str = "k";
const FULL_KEY: &str = "lock:k";

/// The number of times that the slot moves.
const ROUNDS: u32 = 6;

/// The number of grants to each process between two moves.
const GRANTS: usize = 5;

#[tokio::test]
async fn all_waiters_follow_a_slot_that_moves_and_exclude_each_other() {
    follow(&Cluster::start()).await;
}

#[tokio::test]
#[ignore = "fetched by `tests/run --all`"]
async fn all_waiters_follow_a_moving_valkey_slot_and_exclude_each_other() {
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
        move_slot(cluster);
    }
    holders.all_get_it(GRANTS, Moment::now(), HANG).await;
    // A move loses no data, so no overlap is excused.
    holders.stop().assert_in_order();
}

/// The release and the acquire after it are both redirected.
#[tokio::test]
async fn an_acquire_after_a_release_in_the_background_follows_a_slot_that_moved() {
    let cluster = Cluster::start();
    let locks = connect(&cluster.url()).await;
    for _ in 0..ROUNDS {
        let body = async |_| move_slot(&cluster);
        let options = options().release_in_background();
        locks.run(KEY, options, body).await.expect("free");
        run_in_a_row(&locks, KEY, 3).await;
    }
    locks.shutdown(HANG).await;
    assert_eq!(cluster.master_of(FULL_KEY).get(FULL_KEY), None);
}

fn move_slot(cluster: &Cluster) {
    let migration = to_another_master(cluster, FULL_KEY);
    migration.open();
    migration.move_keys();
    migration.close();
}
