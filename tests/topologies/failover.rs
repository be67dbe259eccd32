//! Locks on servers that die again and again, while others take over.

use std::time::Duration;

use lock_core::{LeaseLost, LockOptions};
use lock_tests::{
    AcquireFree as _, Cluster, Deployment, HANG, Holders, Load, RedisServer, ReleaseHeld as _,
    Sentinels, connect, eventually,
    history::{History, Moment, Window},
};
use tokio::time::timeout;

const KEY: &str = "k";
const FULL_KEY: &str = "lock:k";
const TTL: Duration = Duration::from_secs(2);

/// The number of times that the server dies.
const ROUNDS: u32 = 6;

/// The number of grants to each process between two deaths, while nothing is broken.
const GRANTS: usize = 5;

/// The time after a take-over within which each process must get the lock: many times the usual time, for a machine that is busy with
/// a build.
const PROGRESS: Duration = Duration::from_secs(30);

/// Makes a test of each claim on the servers that `start` starts.
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

// The server loses its data each time.
on! { a_server_that_is_started_again: RedisServer::start() =>
    all_waiters_continue_and_tokens_grow
    a_lease_that_the_next_server_does_not_know_is_lost
}
on! { sentinels: Sentinels::start() =>
    all_waiters_continue_and_tokens_grow
    each_token_is_at_least_the_time
    a_lease_that_the_next_server_does_not_know_is_lost
    a_lease_that_the_next_server_knows_continues
}
on! { cluster: Cluster::start() =>
    all_waiters_continue_and_tokens_grow
    each_token_is_at_least_the_time
    a_lease_that_the_next_server_does_not_know_is_lost
    a_lease_that_the_next_server_knows_continues
}

async fn all_waiters_continue_and_tokens_grow(servers: &Deployment) {
    let mut holders = Holders::start(
        env!("CARGO_BIN_EXE_holder"),
        &servers.url(),
        &Load {
            keys: vec![KEY.to_owned()],
            processes: 2,
            tasks: 4,
            ttl: TTL,
            hold: Duration::from_millis(10),
        },
    );
    let mut windows: Vec<Window> = Vec::new();
    let mut calm_since = Moment::now();
    for _ in 0..ROUNDS {
        holders.all_get_it(GRANTS, calm_since, PROGRESS).await;
        let window = fail_over(servers, &mut holders).await;
        calm_since = window.to;
        windows.push(window);
    }
    holders.all_get_it(GRANTS, calm_since, PROGRESS).await;
    let history = holders.stop();
    report(&history, &windows);
    let regressions = history.regressions(&windows);
    assert!(regressions.is_empty(), "{regressions:#?}");
    let overlaps = history.overlaps(&windows);
    assert!(overlaps.is_empty(), "{overlaps:#?}");
}

/// For a moment, both the old primary and the new one may accept writes. Only the time is common to both, so a token that was merely
/// incremented on one could be smaller than an earlier token of the other.
async fn each_token_is_at_least_the_time(servers: &Deployment) {
    let (one, other) = (connect(&servers.url()).await, connect(&servers.url()).await);
    let now = || 2048 * u64::try_from(servers.time(FULL_KEY).as_millis()).expect("a time");
    for _ in 0..20 {
        let before = now();
        let guard = one.acquire_free(KEY, options()).await;
        let token = u64::from(guard.lease().fencing_token());
        assert!(token >= before, "acquired: {token} at {before}");
        let other = other.clone();
        let waiting = tokio::spawn(async move { other.acquire(KEY, options()).await });
        eventually!(HANG, "it is in the wait queue" => servers.has_queue(FULL_KEY));
        let before = now();
        guard.release_held().await;
        let guard = waiting.await.expect("no panic").expect("granted");
        let token = u64::from(guard.lease().fencing_token());
        assert!(token >= before, "granted: {token} at {before}");
        guard.release_held().await;
    }
}

/// Kills the server of the key, and returns the window in which exclusion is not promised.
async fn fail_over(servers: &Deployment, holders: &mut Holders) -> Window {
    let from = Moment::now();
    let killed = servers.kill_server_of(FULL_KEY);
    servers.failed_over(killed);
    holders.all_get_it(1, Moment::now(), PROGRESS).await;
    servers.rejoin(killed);
    Window {
        from,
        // An earlier lease, which the next server does not know, may last until then.
        to: from.after(TTL).max(Moment::now()),
    }
}

fn report(history: &History, windows: &[Window]) {
    for (number, &window) in windows.iter().enumerate() {
        let gap = history.without_service(window);
        eprintln!("fail-over {}: {gap:.2?} without service", number + 1);
    }
    eprintln!(
        "across all fail-overs, of five at most: {} times two holders, {} tokens from before",
        history.overlaps(&[]).len(),
        history.regressions(&[]).len(),
    );
}

/// Options with a ttl that is long enough for any fail-over, and short enough for several renewals within [`HANG`].
fn options() -> LockOptions {
    LockOptions::new(Duration::from_secs(20)).wait(HANG)
}

async fn a_lease_that_the_next_server_does_not_know_is_lost(servers: &Deployment) {
    let locks = connect(&servers.url()).await;
    servers.cut_replicas_of(FULL_KEY);
    let guard = locks.acquire_free(KEY, options()).await;
    let killed = servers.kill_server_of(FULL_KEY);
    servers.cont_replicas();
    servers.failed_over(killed);
    assert_eq!(servers.get(FULL_KEY), None);
    let reason = timeout(HANG, guard.lease().lost()).await.expect("noticed");
    assert_eq!(reason, LeaseLost::TakenAway);
    assert_eq!(servers.get(FULL_KEY), None, "it is not recreated");
    let before = guard.lease().fencing_token();
    let next = locks.acquire_free(KEY, options()).await;
    assert!(next.lease().fencing_token() > before);
}

async fn a_lease_that_the_next_server_knows_continues(servers: &Deployment) {
    let locks = connect(&servers.url()).await;
    let guard = locks.acquire_free(KEY, options()).await;
    eventually!(HANG, "the replicas have it" => servers.is_replicated(FULL_KEY));
    let token = servers.get(FULL_KEY);
    let killed = servers.kill_server_of(FULL_KEY);
    servers.failed_over(killed);
    let before = servers.expires_at(FULL_KEY);
    assert!(before.is_some(), "it expires");
    eventually!(HANG, "it is renewed on the next server" => servers.expires_at(FULL_KEY) > before);
    assert_eq!(servers.get(FULL_KEY), token);
    guard.lease().verify().await.expect("held");
    guard.release_held().await;
    assert_eq!(servers.get(FULL_KEY), None);
}
