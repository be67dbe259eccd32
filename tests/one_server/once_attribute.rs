//! Functions that run once, by their attribute, on a server.

use std::time::Duration;

use lock_core::{LockError, LockManager, Repeat, run_once};
use lock_tests::{HANG, RedisServer, SECOND, connect, eventually};
use tokio::time::sleep;

use crate::once::{Bodies, only_the_result_is_left};

const RESULT: &str = "__lock_core__:result:lock:charge:7:a";

#[run_once(
    key = "charge:{user}:{key}",
    keep = "1m",
    fingerprint = cents,
    wait = HANG,
    locks = locks,
)]
async fn charge(
    locks: LockManager,
    user: u64,
    key: &'static str,
    cents: u64,
    bodies: Bodies,
) -> Result<(u64, String), LockError> {
    let number = bodies.next();
    sleep(Duration::from_millis(50)).await;
    Ok((cents, number))
}

/// Drops a call as soon as its body has begun.
async fn drop_begun(locks: &LockManager, bodies: &Bodies) {
    let call = charge(locks.clone(), 7, "a", 100, bodies.clone());
    let begun = eventually(HANG, "the body begins", async || bodies.count() == 1);
    tokio::select! {
        biased;
        () = begun => {}
        value = call => panic!("{value:?} ahead of the look"),
    }
}

#[tokio::test]
async fn a_body_goes_on_without_its_caller_and_another_process_gets_its_value() {
    let server = RedisServer::start();
    let [locks, other] = [connect(&server.url()).await, connect(&server.url()).await];
    let bodies = Bodies::default();
    drop_begun(&locks, &bodies).await;
    let value = charge(other.clone(), 7, "a", 100, bodies.clone()).await;
    assert_eq!(value.expect("a result"), (100, "1".to_owned()));
    let refused = charge(other, 7, "a", 200, bodies.clone()).await;
    let error = refused.expect_err("another request");
    let reason = Repeat::OtherRequest;
    assert!(
        matches!(&error, LockError::Repeated { reason: other, .. } if *other == reason),
        "{error}"
    );
    assert_eq!(bodies.count(), 1);
    only_the_result_is_left(&server, RESULT).await;
}

#[tokio::test]
async fn a_shutdown_waits_for_a_body_without_a_caller() {
    let server = RedisServer::start();
    let (locks, bodies) = (connect(&server.url()).await, Bodies::default());
    drop_begun(&locks, &bodies).await;
    locks.shutdown(SECOND * 10).await;
    assert!(server.pttl(RESULT).is_some(), "its result is kept");
}
