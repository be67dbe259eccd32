//! Bodies that run once, in processes that are killed or stopped in the meantime.

use std::time::Duration;

use lock_core::{LockManager, OnceOptions};
use lock_tests::{
    Cluster, Deployment, HANG, Process, RedisServer, SECOND, Sentinels, connect, eventually,
};

const FULL_KEY: &str = "lock:k";
/// Longer than most stalls of a busy machine, which make renewals late.
const TTL: Duration = Duration::from_secs(5);

fn runner(servers: &Deployment, value: &str) -> Process {
    let ttl = TTL.as_millis().to_string();
    let arguments = [&*servers.url(), "k", &ttl, value];
    Process::spawn(env!("CARGO_BIN_EXE_runner"), &arguments, &[])
}

async fn run(locks: &LockManager, value: &str) -> String {
    let options = OnceOptions::keep(SECOND * 60).ttl(TTL).wait(HANG);
    let body = async |_| Ok::<_, String>(value.to_owned());
    let ran = locks.run_once("k", options, body).await;
    ran.expect("the servers are up").expect("it succeeds")
}

/// One server, sentinels, and a cluster.
fn each_topology() -> [Deployment; 3] {
    [
        RedisServer::start().into(),
        Sentinels::start().into(),
        Cluster::start().into(),
    ]
}

#[tokio::test]
async fn after_a_kill_in_the_body_the_next_process_runs_it() {
    for servers in each_topology() {
        let locks = connect(&servers.url()).await;
        let mut killed = runner(&servers, "killed");
        assert_eq!(killed.line(), "runs");
        let mut waits = runner(&servers, "second");
        killed.kill9();
        assert_eq!(waits.line(), "runs");
        waits.say("");
        assert_eq!(waits.line(), "second");
        assert_eq!(run(&locks, "third").await, "second");
        waits.join();
    }
}

#[tokio::test]
async fn a_holder_that_slept_through_its_lease_overwrites_no_result() {
    for servers in each_topology() {
        let locks = connect(&servers.url()).await;
        let mut sleeps = runner(&servers, "too late");
        assert_eq!(sleeps.line(), "runs");
        sleeps.stop();
        eventually!(HANG, "its lease has ended" => servers.get(FULL_KEY).is_none());
        assert_eq!(run(&locks, "in time").await, "in time");
        sleeps.cont();
        sleeps.say("");
        // It ran its body, so it returns its own value.
        assert_eq!(sleeps.line(), "too late");
        assert_eq!(run(&locks, "third").await, "in time");
        sleeps.join();
    }
}

/// The sleeper wakes while another process runs the body, and holds the lock.
#[tokio::test]
async fn a_holder_that_slept_through_its_lease_leaves_no_result_to_the_next_runner() {
    let servers: Deployment = RedisServer::start().into();
    let locks = connect(&servers.url()).await;
    let mut sleeps = runner(&servers, "too late");
    assert_eq!(sleeps.line(), "runs");
    sleeps.stop();
    let mut second = runner(&servers, "second");
    assert_eq!(second.line(), "runs");
    sleeps.cont();
    sleeps.say("");
    assert_eq!(sleeps.line(), "too late");
    assert!(servers.get(FULL_KEY).is_some(), "the second one holds it");
    second.say("");
    assert_eq!(second.line(), "second");
    assert_eq!(run(&locks, "third").await, "second");
    second.join();
    sleeps.join();
}
