//! A server that is out of reach: new requests, requests that were waiting, and a program that starts before its server.

use std::{error::Error as _, time::Duration};

use lock_core::{LockError, LockKey, LockManager, LockOptions};
use lock_tests::{HANG, RedisServer, assert_fails, connect_in_some_tries, eventually, granted};
use tokio::time::{Instant, timeout};

const MILLISECOND: Duration = Duration::from_millis(1);

/// Options with a wait so long that a request which used it up would make the test hang.
fn options() -> LockOptions {
    LockOptions::default().wait(HANG * 10)
}

/// Returns `true` if a request was refused at once, without being sent.
fn is_fast(refused: &Result<impl Sized, LockError>) -> bool {
    match refused {
        Err(error @ LockError::Unavailable { .. }) => {
            let source = error.source().expect("it has one");
            source.to_string().contains("fail_fast_after")
        }
        _ => false,
    }
}

async fn connect(redis: &RedisServer) -> LockManager {
    let builder = LockManager::builder()
        .command_timeout(MILLISECOND * 200)
        .connect_timeout(MILLISECOND * 200)
        .fail_fast_after(MILLISECOND * 300);
    connect_in_some_tries(&builder, &redis.url()).await
}

/// Waits until new requests are refused at once.
async fn refused_at_once(locks: &LockManager) -> LockError {
    let start = Instant::now();
    while start.elapsed() < HANG {
        let tried = timeout(HANG, locks.acquire("k", options().wait(MILLISECOND))).await;
        let tried = tried.expect("it ends soon after its wait");
        if is_fast(&tried) {
            return tried.expect_err("refused");
        }
    }
    panic!("no request failed at once");
}

#[tokio::test(flavor = "multi_thread")]
async fn in_an_outage_new_requests_fail_at_once_and_earlier_ones_wait() {
    for is_stopped in [true, false] {
        let redis = RedisServer::start();
        let locks = connect(&redis).await;
        if is_stopped {
            redis.stop();
        } else {
            redis.kill9();
        }
        let waiting = tokio::spawn({
            let locks = locks.clone();
            async move { locks.acquire("waits", options()).await.map(drop) }
        });
        let error = refused_at_once(&locks).await;
        assert_eq!(error.key().map(LockKey::as_str), Some("k"));
        // A request with a long wait is refused, too, instead of hanging for as long as the server is away.
        assert!(is_fast(&locks.acquire("k", options()).await));
        let forever = tokio::spawn({
            let locks = locks.clone();
            async move {
                locks
                    .acquire("forever", options().wait_forever())
                    .await
                    .map(drop)
            }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished() && !forever.is_finished());

        if is_stopped {
            redis.cont();
        } else {
            redis.restart();
        }
        for waits in [waiting, forever] {
            granted(waits).await;
        }
        let next = timeout(HANG, locks.acquire("k", options())).await;
        drop(next.expect("served").expect("the outage is over"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_ends_even_if_no_request_waits() {
    let redis = RedisServer::start();
    let locks = connect(&redis).await;
    redis.kill9();
    refused_at_once(&locks).await;
    redis.restart();
    // Each refused request starts a check of the server in the background.
    let is_sent = async || locks.acquire("k", options()).await.is_ok();
    eventually(HANG, "requests are sent again", is_sent).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_wait_in_an_outage_if_fail_fast_after_is_the_maximum() {
    let redis = RedisServer::start();
    let locks = LockManager::builder()
        .command_timeout(MILLISECOND * 100)
        .fail_fast_after(Duration::MAX)
        .connect(&redis.url())
        .await
        .expect("it is up");
    redis.kill9();
    for _ in 0..3 {
        let (start, wait) = (Instant::now(), MILLISECOND * 500);
        let tried = locks.acquire("k", options().wait(wait)).await;
        assert!(matches!(tried, Err(LockError::Unavailable { .. })) && !is_fast(&tried));
        assert!(start.elapsed() >= wait, "{:?}", start.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_may_start_before_its_server() {
    let redis = RedisServer::start();
    redis.kill9();
    let builder = || LockManager::builder().connect_timeout(MILLISECOND * 200);
    let refused = builder().connect(&redis.url()).await;
    assert_fails!(refused, LockError::Unavailable { .. });

    let locks = builder().connect_lazily().connect(&redis.url()).await;
    let locks = locks.expect("lazily");
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { locks.acquire("k", options()).await.map(drop) }
    });
    let tried = locks.acquire("k", options().wait(MILLISECOND)).await;
    assert_fails!(tried, LockError::Unavailable { .. });
    redis.restart();
    granted(waiting).await;
    locks.check().await.expect("it is there");

    // A permanent mistake is still an error.
    let url = format!("redis://nobody:wrong@127.0.0.1:{}", redis.port());
    let refused = builder().connect_lazily().connect(&url).await;
    assert_fails!(refused, LockError::Invalid { .. });
}
