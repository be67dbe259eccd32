//! Waiters that are stopped when they are granted a lock, and continue after the grant has expired.

use std::time::Duration;

use lock_tests::{
    AcquireFree as _, Cluster, Deployment, HANG, Holders, Load, RedisServer, ReleaseHeld as _,
    connect, eventually,
    history::{Moment, Step},
    patient,
};

const KEY: &str = "k";
const FULL_KEY: &str = "lock:k";

/// Several rounds, since chance decides which of two messages a process reads first when it continues.
const ROUNDS: u32 = 12;

#[tokio::test]
async fn a_waiter_that_slept_through_its_grant_does_not_take_it_for_a_new_one() {
    sleep_through_grants(&RedisServer::start().into()).await;
}

/// In a cluster, messages arrive on a second connection, in any order relative to the replies.
#[tokio::test]
async fn a_waiter_in_a_cluster_that_slept_through_its_grant_does_not_take_it_for_a_new_one() {
    sleep_through_grants(&Cluster::start().into()).await;
}

async fn sleep_through_grants(servers: &Deployment) {
    let mut waiters = Holders::start(
        env!("CARGO_BIN_EXE_holder"),
        &servers.url(),
        &Load {
            keys: vec![KEY.to_owned()],
            processes: 1,
            tasks: 1,
            ttl: Duration::from_millis(600),
            hold: Duration::from_millis(10),
        },
    );
    let locks = connect(&servers.url()).await;
    for round in 0..ROUNDS {
        let first = locks.acquire(KEY, patient()).await.expect("it is released");
        until_queued(servers).await;
        waiters.processes()[0].stop();
        first.release_held().await;
        eventually!(HANG, "the grant has expired" => servers.get(FULL_KEY).is_none());
        let second = locks.acquire_free(KEY, patient()).await;
        // An entry from before the stop would end the wait below too early.
        for queue in servers.keys("__lock_core__:*waiters:*") {
            servers.delete(&queue);
        }
        let from = Moment::now();
        waiters.processes()[0].cont();
        until_queued(servers).await;
        second.lease().verify().await.expect("held");
        let to = Moment::now();
        second.release_held().await;
        waiters.all_get_it(1, to, HANG).await;
        let events = waiters.history().events().iter();
        let meanwhile = events.filter(|event| from < event.at && event.at < to);
        let taken: Vec<_> = meanwhile
            .filter(|event| matches!(event.step, Step::Acquired { .. }))
            .collect();
        assert!(taken.is_empty(), "round {round}: {taken:?}");
    }
    waiters.stop();
}

/// Waits until the waiter is in the queue.
async fn until_queued(servers: &Deployment) {
    eventually!(HANG, "it is in the queue" => servers.has_queue(FULL_KEY));
}
