//! Locks in web frameworks, with a listener for each test and a client that may close the connection.
//!
//! The claims about frameworks of HTTP are written once, over a [`Site`]. Each module defines the same routes in its framework,
//! and tests each claim.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use axum::body::Bytes;
use futures_util::{Stream, StreamExt as _, stream};
use lock_core::{LockError, LockGuard, LockManager};
use lock_tests::{HttpRequest, HttpResponse, RedisServer, eventually, options};
use tokio::sync::Notify;

/// A lock that was not released is held for longer than this.
const SOON: Duration = Duration::from_secs(30);

/// The state that every handler needs.
#[derive(Clone, Debug)]
struct App {
    locks: LockManager,
    /// Ends the current stream.
    finish: Arc<Notify>,
    /// Whether the first piece of a body was requested.
    has_begun: Arc<AtomicBool>,
}

impl App {
    fn in_memory() -> Self {
        Self::on(LockManager::builder().ttl(SOON * 4).in_memory())
    }

    fn on(locks: LockManager) -> Self {
        Self {
            locks,
            finish: Arc::default(),
            has_begun: Arc::default(),
        }
    }

    async fn hold(&self, key: &str) -> LockGuard {
        let held = self.locks.acquire(key, options().wait(SOON)).await;
        held.expect("the lock is free soon")
    }

    async fn try_hold(&self, key: &str) -> Option<LockGuard> {
        let tried = self.locks.try_acquire(key, options()).await;
        tried.expect("the backend answers")
    }

    async fn is_held(&self, key: &str) -> bool {
        let info = self.locks.inspect(key).await;
        info.expect("the backend answers").is_some()
    }

    async fn held(&self, key: &str) {
        eventually!(SOON, "a handler holds the lock" => self.is_held(key).await);
    }
}

/// Returns a stream of two pieces. The second follows when the test says so.
fn pieces(app: App) -> impl Stream<Item = Result<Bytes, LockError>> + Send {
    let last = async move {
        app.finish.notified().await;
        Ok("last".into())
    };
    stream::iter([Ok("first".into())]).chain(stream::once(last))
}

/// A server of one of the frameworks, with these routes:
///
/// - `/result/{id}` returns a `Result` with the lock's error, and `/error/{id}` one with the framework's response as its error;
/// - `/response/{id}` returns the framework's response, and `/opaque/{id}` an `impl Trait`; `/opaque/0` is 404;
/// - `/mute/{id}` returns a status and a text;
/// - `/locked/{id}` turns a busy lock into 423 with `on_error`;
/// - `/hang/{id}` never responds;
/// - `/stream/{id}` moves its guard into the stream that it returns;
/// - `/sent/{id}` is a locked function with a `max_hold` that returns a stream.
///
/// They lock `order:{id}` without waiting.
struct Site {
    url: String,
    app: App,
}

impl Site {
    async fn get(&self, path: &str) -> HttpResponse {
        let response = self.send(path).await.response().await;
        response.expect("a response")
    }

    async fn send(&self, path: &str) -> HttpRequest {
        self.send_as("GET", path).await
    }

    async fn send_as(&self, method: &str, path: &str) -> HttpRequest {
        let url = format!("{}{path}", self.url);
        let sent = HttpRequest::send(method, &url, "").await;
        sent.expect("a listening server")
    }

    /// Reads the first piece of the stream.
    async fn stream(&self) -> HttpRequest {
        self.stream_of("/stream/7").await
    }

    async fn stream_of(&self, path: &str) -> HttpRequest {
        let mut request = self.send(path).await;
        let piece = request.read_until("first\r\n").await;
        piece.expect("a piece");
        assert!(self.app.is_held("order:7").await, "{path}");
        request
    }
}

/// The mark after the last piece of a body.
const END: &str = "0\r\n\r\n";

/// Makes a test of each claim in a module that has a `start(app: App) -> Site`.
macro_rules! test_claims {
    () => {
        test_claims! {
            a_free_lock_changes_no_response
            a_busy_lock_is_a_conflict_with_a_retry_after
            the_response_of_on_error_takes_precedence
            a_lock_is_held_until_the_stream_has_ended
            a_stream_ends_with_its_lease
        }

        #[tokio::test]
        async fn a_lost_lease_is_unavailable() {
            let redis = lock_tests::RedisServer::start();
            super::a_lost_lease_is_unavailable(&start(super::connected(&redis).await).await, &redis).await;
        }
    };
    ($($claim:ident)+) => {
        $(
            #[tokio::test]
            async fn $claim() {
                super::$claim(&start(super::App::in_memory()).await).await;
            }
        )+
    };
}

mod actix;
mod axum_;
mod hang_up;
mod once;
mod poem_;
mod serving;
mod tonic_;
mod until_sent;

async fn connected(redis: &RedisServer) -> App {
    let locks = LockManager::connect(&redis.url()).await;
    App::on(locks.expect("a server"))
}

const CARRYING: [&str; 4] = ["/result/7", "/response/7", "/opaque/7", "/error/7"];

async fn a_free_lock_changes_no_response(site: &Site) {
    for path in CARRYING.into_iter().chain(["/mute/7", "/locked/7"]) {
        let response = site.get(path).await;
        assert_eq!(response.status, 200, "{path}: {response:?}");
        assert!(response.body.contains("order 7"), "{path}: {response:?}");
    }
    assert_eq!(site.get("/opaque/0").await.status, 404);
}

async fn a_busy_lock_is_a_conflict_with_a_retry_after(site: &Site) {
    // After this, the typical duration of the handlers is known.
    a_free_lock_changes_no_response(site).await;
    let guard = site.app.hold("order:7").await;
    for path in CARRYING {
        let response = site.get(path).await;
        assert_problem(&response, 409, "Conflict");
        let seconds = header(&response, "retry-after").expect("a pause");
        let seconds: u64 = seconds.parse().expect("whole seconds");
        assert_eq!(
            seconds, 1,
            "{path}: as long as the body takes, and not the rest of the ttl of 10 s"
        );
    }
    let mute = site.get("/mute/7").await;
    assert_eq!(mute.status, 409, "{mute:?}");
    assert!(mute.body.contains("another request"), "{mute:?}");

    guard.release().await.expect("held until now");
    a_free_lock_changes_no_response(site).await;
}

async fn the_response_of_on_error_takes_precedence(site: &Site) {
    let _guard = site.app.hold("order:7").await;
    let response = site.get("/locked/7").await;
    assert_eq!((response.status, response.body.as_str()), (423, "true"));
}

async fn a_client_that_hangs_up_releases_the_lock_at_once(site: &Site) {
    let request = site.send("/hang/7").await;
    site.app.held("order:7").await;
    drop(request);
    drop(site.app.hold("order:7").await);
}

async fn a_client_that_resets_the_connection_releases_the_lock_at_once(site: &Site) {
    let request = site.send("/hang/7").await;
    site.app.held("order:7").await;
    request.reset().expect("a connection");
    drop(site.app.hold("order:7").await);
}

async fn a_lock_is_held_until_the_stream_has_ended(site: &Site) {
    let mut request = site.stream().await;
    site.app.finish.notify_one();
    let rest = request.read_until(&format!("last\r\n{END}")).await;
    rest.expect("another piece, and the end");
    drop(site.app.hold("order:7").await);
}

async fn a_response_ends_with_the_lease_of_its_function(site: &Site) {
    let request = site.stream_of("/sent/7").await;
    site.app.locks.shutdown(Duration::ZERO).await;
    let rest = tokio::time::timeout(SOON, request.rest()).await;
    let rest = rest.expect("the connection ends");
    assert!(!rest.contains("last"), "{rest}");
}

async fn a_client_that_hangs_up_ends_the_stream_and_its_lock(site: &Site) {
    drop(site.stream().await);
    drop(site.app.hold("order:7").await);
}

async fn a_client_that_resets_the_connection_ends_the_stream_and_its_lock(site: &Site) {
    site.stream().await.reset().expect("a connection");
    drop(site.app.hold("order:7").await);
}

async fn a_stream_ends_with_its_lease(site: &Site) {
    let rest = rest_after_a_loss(site).await;
    assert!(!rest.contains("last"), "{rest}");
}

async fn a_reader_can_distinguish_a_loss_from_the_end(site: &Site) {
    let rest = rest_after_a_loss(site).await;
    assert!(!rest.ends_with(END), "{rest}");
}

async fn rest_after_a_loss(site: &Site) -> String {
    let request = site.stream().await;
    site.app.locks.shutdown(Duration::ZERO).await;
    let rest = tokio::time::timeout(SOON, request.rest()).await;
    rest.expect("the connection ends")
}

async fn a_lost_lease_is_unavailable(site: &Site, redis: &RedisServer) {
    let request = site.send("/hang/7").await;
    site.app.held("order:7").await;
    redis.cli(&["DEL", "lock:order:7"]);
    let response = request.response().await.expect("a response");
    assert_problem(&response, 503, "Service Unavailable");
    assert!(response.body.contains("interrupted"), "{response:?}");
}

/// Checks that the response follows RFC 9457 and contains nothing confidential.
#[track_caller]
fn assert_problem(response: &HttpResponse, status: u16, title: &str) {
    assert_eq!(response.status, status, "{response:?}");
    let media_type = header(response, "content-type");
    assert_eq!(media_type.as_deref(), Some("application/problem+json"));
    let problem: serde_json::Value = serde_json::from_str(&response.body).expect("json");
    assert_eq!(problem["type"], "about:blank");
    assert_eq!(problem["title"], title);
    assert_eq!(problem["status"], status);
    assert!(problem["detail"].is_string());
    let text = format!("{}{}", response.head, response.body);
    for secret in ["order", "redis", "lock"] {
        assert!(!text.contains(secret), "`{secret}` in {text}");
    }
}

fn header(response: &HttpResponse, name: &str) -> Option<String> {
    let lines = response
        .head
        .lines()
        .filter_map(|line| line.split_once(": "));
    let mut values = lines.filter(|(found, _)| found.eq_ignore_ascii_case(name));
    values.next().map(|(_, value)| value.to_owned())
}
