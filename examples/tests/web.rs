//! The examples of web frameworks, as processes.

use std::time::Duration;

use lock_tests::{HttpRequest, Process, RedisServer, eventually};

const SOON: Duration = Duration::from_secs(30);

/// Starts an example whose payments take this long, and returns the address that it prints.
fn start(program: &str, lock_url: &str, payment_ms: &str) -> (Process, String) {
    let variables = [
        ("LOCK_URL", lock_url),
        ("PAYMENT_MS", payment_ms),
        ("PORT", "0"),
    ];
    let mut process = Process::spawn(program, &[], &variables);
    let line = process.line();
    let (_, address) = line.split_once(" on ").expect("its address first");
    let address = address.to_owned();
    (process, address)
}

async fn is_paid(redis: &RedisServer) {
    eventually(SOON, "the payment holds the lock", async || {
        redis.get("lock:order:1").is_some()
    })
    .await;
}

async fn is_released_before(end: Duration, redis: &RedisServer) {
    eventually(SOON, "the lock is free", async || {
        redis.get("lock:order:1").is_none()
    })
    .await;
    assert!(redis.time() < end, "it was not released, but has expired");
}

#[tokio::test]
async fn actix_refuses_a_second_payment_until_the_first_is_given_up() {
    let redis = RedisServer::start();
    let (_process, url) = start(env!("CARGO_BIN_EXE_actix"), &redis.url(), "600000");
    let path = format!("{url}/orders/1/pay");
    let send = || HttpRequest::send("POST", &path, "");
    let first = send().await.expect("a listening server");
    is_paid(&redis).await;

    let second = send().await.expect("a listening server").response().await;
    let second = second.expect("a response");
    assert_eq!(second.status, 409, "{second:?}");
    assert!(second.head.contains("retry-after: "), "{second:?}");

    let end = redis.expires_at("lock:order:1").expect("held");
    drop(first);
    is_released_before(end, &redis).await;
}

#[tokio::test]
async fn actix_runs_without_a_lock_server() {
    let (_process, url) = start(env!("CARGO_BIN_EXE_actix"), "memory://", "0");
    for (id, status) in [(1, 200), (0, 404)] {
        let sent = HttpRequest::send("POST", &format!("{url}/orders/{id}/pay"), "").await;
        let response = sent.expect("a listening server").response().await;
        assert_eq!(response.expect("a response").status, status);
    }
}

fn pay(address: &str) -> Process {
    let (_, port) = address.rsplit_once(':').expect("a port");
    let tonic = env!("CARGO_BIN_EXE_tonic");
    Process::spawn(tonic, &["pay", "1"], &[("PORT", port)])
}

#[tokio::test]
async fn tonic_refuses_a_second_payment_until_the_first_is_given_up() {
    let redis = RedisServer::start();
    let (_process, address) = start(env!("CARGO_BIN_EXE_tonic"), &redis.url(), "600000");
    let mut first = pay(&address);
    is_paid(&redis).await;
    let printed = pay(&address).line();
    assert!(printed.contains("another request is working"), "{printed}");

    let end = redis.expires_at("lock:order:1").expect("held");
    first.kill9();
    is_released_before(end, &redis).await;
}

#[tokio::test]
async fn tonic_runs_without_a_lock_server() {
    let (_process, address) = start(env!("CARGO_BIN_EXE_tonic"), "memory://", "0");
    assert_eq!(pay(&address).line(), "order 1: paid");
}
