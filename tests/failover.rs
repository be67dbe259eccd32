//! What becomes of locks when the server that has them dies and another one takes over, again and again.

use std::{path::Path, time::Duration};

use lock_core::{LeaseLost, LockManager, LockOptions};
use lock_tests::{
    Cluster, Deployment, Process, RedisServer, Sentinels, eventually,
    history::{Follower, Moment, Window},
};
use tokio::time::timeout;

const HANG: Duration = Duration::from_secs(60);

const KEY: &str = "k";
const FULL_KEY: &str = "lock:k";
const PROCESSES: u32 = 2;
const TASKS: u32 = 4;
const TTL: Duration = Duration::from_secs(2);
const HOLD: Duration = Duration::from_millis(10);

/// So often the server dies.
const ROUNDS: u32 = 10;

/// So often each process is to get the lock between two deaths, while nothing is broken.
const GRANTS: usize = 5;

/// Within this time after another server took over, each process is to get the lock: many times what it takes, for a machine
/// busy with a build.
const PROGRESS: Duration = Duration::from_secs(30);

/// Makes a test of each claim on what `start` starts.
macro_rules! on {
    ($module:ident: $start:expr => $($claim:ident)*) => {
        mod $module {
            use super::*;

            $(
                #[tokio::test]
                async fn $claim() {
                    super::$claim(&Deployment::from($start)).await;
                }
            )*
        }
    };
}

// It has lost its data each time.
on! { a_server_that_is_started_again: RedisServer::start() =>
    all_who_wait_go_on_and_tokens_grow
    a_lease_that_the_next_server_does_not_know_is_lost
}
on! { sentinels: Sentinels::start() =>
    all_who_wait_go_on_and_tokens_grow
    a_lease_that_the_next_server_does_not_know_is_lost
    a_lease_that_the_next_server_knows_goes_on
}
on! { cluster: Cluster::start() =>
    all_who_wait_go_on_and_tokens_grow
    a_lease_that_the_next_server_does_not_know_is_lost
    a_lease_that_the_next_server_knows_goes_on
}

async fn all_who_wait_go_on_and_tokens_grow(servers: &Deployment) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("history");
    let mut follower = Follower::open(&path).expect("a new file");
    let mut holders = start_holders(servers, &path);
    let mut windows = Vec::new();
    let mut calm_since = Moment::now();
    for _ in 0..ROUNDS {
        all_get_it(&mut follower, GRANTS, calm_since).await;
        let window = fail_over(servers, &mut follower).await;
        calm_since = window.to;
        windows.push(window);
    }
    all_get_it(&mut follower, GRANTS, calm_since).await;
    for holder in &mut holders {
        holder.say("stop");
    }
    for holder in holders {
        holder.join();
    }
    report(&mut follower, &windows);
    let history = follower.history();
    let regressions = history.regressions(&windows);
    assert!(regressions.is_empty(), "{regressions:#?}");
    let overlaps = history.overlaps(&windows);
    assert!(overlaps.is_empty(), "{overlaps:#?}");
}

fn start_holders(servers: &Deployment, history: &Path) -> Vec<Process> {
    let (tasks, ttl, hold) = (
        TASKS.to_string(),
        TTL.as_millis().to_string(),
        HOLD.as_millis().to_string(),
    );
    let url = servers.url();
    let history = history.to_str().expect("a path that is text");
    let holders = (0..PROCESSES).map(|process| {
        let process = process.to_string();
        let arguments = [&*url, history, &process, KEY, &tasks, &ttl, &hold];
        Process::spawn(env!("CARGO_BIN_EXE_holder"), &arguments, &[])
    });
    let mut holders: Vec<Process> = holders.collect();
    // All are connected before the first begins, so that they really meet.
    for holder in &mut holders {
        assert_eq!(holder.line(), "ready");
    }
    for holder in &mut holders {
        holder.say("go");
    }
    holders
}

/// Kills the server of the key, and returns in which time exclusion is not promised.
async fn fail_over(servers: &Deployment, follower: &mut Follower) -> Window {
    let from = Moment::now();
    let killed = servers.kill_server_of(FULL_KEY);
    servers.failed_over(killed);
    all_get_it(follower, 1, Moment::now()).await;
    servers.rejoin(killed);
    Window {
        from,
        // A lease from before, which the next server does not know, may last until then.
        to: from.after(TTL).max(Moment::now()),
    }
}

async fn all_get_it(follower: &mut Follower, times: usize, after: Moment) {
    for process in 0..PROCESSES {
        let what = format!("process {process} gets the lock {times} times");
        eventually(PROGRESS, &what, async || {
            follower.history().grants(process, after) >= times
        })
        .await;
    }
}

fn report(follower: &mut Follower, windows: &[Window]) {
    let history = follower.history();
    for (number, &window) in windows.iter().enumerate() {
        let gap = history.without_service(window);
        eprintln!("fail-over {}: {gap:.2?} without service", number + 1);
    }
    eprintln!(
        "across all fail-overs: {} times two holders, {} tokens from before",
        history.overlaps(&[]).len(),
        history.regressions(&[]).len(),
    );
}

async fn connect(servers: &Deployment) -> LockManager {
    LockManager::connect(&servers.url())
        .await
        .expect("the servers are up")
}

/// Long enough for any fail-over, and short enough for several renewals within [`HANG`].
fn options() -> LockOptions {
    LockOptions::new(Duration::from_secs(20)).wait(HANG)
}

async fn a_lease_that_the_next_server_does_not_know_is_lost(servers: &Deployment) {
    let locks = connect(servers).await;
    servers.cut_replicas_of(FULL_KEY);
    let guard = locks.acquire(KEY, options()).await.expect("free");
    let killed = servers.kill_server_of(FULL_KEY);
    servers.cont_replicas();
    servers.failed_over(killed);
    assert_eq!(servers.get(FULL_KEY), None);
    let reason = timeout(HANG, guard.lease().lost()).await.expect("noticed");
    assert_eq!(reason, LeaseLost::TakenAway);
    assert_eq!(servers.get(FULL_KEY), None, "it is not made anew");
    let before = guard.lease().fencing_token();
    let next = locks.acquire(KEY, options()).await.expect("free");
    assert!(next.lease().fencing_token() > before);
}

async fn a_lease_that_the_next_server_knows_goes_on(servers: &Deployment) {
    let locks = connect(servers).await;
    let guard = locks.acquire(KEY, options()).await.expect("free");
    eventually(HANG, "the replicas have it", async || {
        servers.is_replicated(FULL_KEY)
    })
    .await;
    let token = servers.get(FULL_KEY);
    let killed = servers.kill_server_of(FULL_KEY);
    servers.failed_over(killed);
    let before = servers.pttl(FULL_KEY).expect("it expires");
    eventually(HANG, "it is renewed on the next server", async || {
        servers.pttl(FULL_KEY).expect("it expires") > before
    })
    .await;
    assert_eq!(servers.get(FULL_KEY), token);
    guard.lease().verify().await.expect("held");
    guard.release().await.expect("held");
    assert_eq!(servers.get(FULL_KEY), None);
}
