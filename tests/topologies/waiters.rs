//! Tasks that wait for locks.

use std::time::{Duration, Instant};

use lock_core::{LockError, LockGuard, LockManager, LockOptions};
use lock_tests::{HANG, Proxy, SECOND, eventually};
use tokio::task::JoinHandle;

pub(super) type Waiting = JoinHandle<Result<LockGuard, LockError>>;

/// Makes fifty tasks wait for one lock each, while the servers behind a proxy are down. Checks that the proxy gets at
/// most one connection in each `pause`, and some more at the beginning.
pub(super) async fn many_wait_in_an_outage(
    locks: &LockManager,
    proxy: &Proxy,
    pause: Duration,
) -> Vec<Waiting> {
    let wait = |number| {
        let (locks, key) = (locks.clone(), format!("wanted{number}"));
        let options = LockOptions::new(SECOND * 30).wait(HANG);
        tokio::spawn(async move { locks.acquire(key, options).await })
    };
    let waiting = (0..50).map(wait).collect();
    let (before, started) = (proxy.connections(), Instant::now());
    eventually!(HANG, "some time has passed" => started.elapsed() > SECOND * 2);
    let connections = u128::from(proxy.connections() - before);
    let most = started.elapsed().as_millis() / pause.as_millis() + 20;
    assert!(
        (1..=most).contains(&connections),
        "{connections} connections, but at most {most} are expected"
    );
    waiting
}
