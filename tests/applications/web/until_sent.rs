//! How long a locked handler holds its lock, and whether it warns. Each framework, return type and kind of body is tried, with
//! `max_hold` and without.
//!
//! A response that is complete releases the lock when the handler returns. The lock of any other response is held until it has
//! been sent, if `max_hold` bounds that time. Otherwise there is one warning for each template.

use std::{
    io,
    pin::Pin,
    sync::{LazyLock, atomic::Ordering::Relaxed},
    task::{Context, Poll},
};

use axum::{body::Bytes, http::StatusCode};
use futures_util::{Stream, stream};
use http_body::{Frame, SizeHint};
use lock_core::LockError;
use lock_tests::Log;

use super::{App, SOON, Site, header};

mod actix;
mod axum_;
mod poem_;
mod tonic_;

/// The only piece of a body that is made while it is sent.
const PIECE: &str = "the only piece";

/// The end of the head of a response.
const HEAD: &str = "\r\n\r\n";

/// What a handler returns, with routes `/{name}/{variant}/{body}` and keys `{framework}:{name}:{variant}`. The variants are `bounded`,
/// which has a `max_hold`, and `sized` and `streamed`, which have none.
#[derive(Clone, Copy, Debug)]
struct Returned {
    framework: &'static str,
    name: &'static str,
    /// Whether the integration sees that a request is a HEAD, whose response has no body, and keeps the body from being made.
    sees_the_method: bool,
}

impl Returned {
    fn key(self, variant: &str) -> String {
        format!("{}:{}:{variant}", self.framework, self.name)
    }

    fn path(self, variant: &str, body: &str) -> String {
        format!("/{}/{variant}/{body}", self.name)
    }
}

/// Makes the piece when the test says so.
fn piece(app: &App) -> impl Stream<Item = io::Result<Bytes>> + Send + Sync + 'static {
    let app = app.clone();
    stream::once(async move {
        app.has_begun.store(true, Relaxed);
        app.finish.notified().await;
        Ok(Bytes::from_static(PIECE.as_bytes()))
    })
}

/// A body that has a size, and is made while it is sent.
struct WithSize(Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send + Sync>>);

impl http_body::Body for WithSize {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let piece = self.0.as_mut().poll_next(context);
        piece.map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(PIECE.len() as u64)
    }
}

/// The error of a service. The status of actix is that of an earlier version of `http`.
#[derive(Debug)]
struct Refused<Status = StatusCode>(Status);

impl<Status: From<LockError>> From<LockError> for Refused<Status> {
    fn from(error: LockError) -> Self {
        Self(error.into())
    }
}

fn answered<T, Status>(
    app: &App,
    kind: &str,
    not_found: Status,
    make: fn(&App, &str) -> T,
) -> Result<T, Refused<Status>> {
    match kind {
        "failed" => Err(Refused(not_found)),
        kind => Ok(make(app, kind)),
    }
}

/// The log of the process, from its first warning on.
fn log() -> &'static Log {
    static LOG: LazyLock<Log> = LazyLock::new(|| {
        let log = Log::default();
        let writer = log.clone();
        tracing_subscriber::fmt()
            .with_max_level(tracing::Level::WARN)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .init();
        log
    });
    &LOG
}

fn warnings(key: &str) -> usize {
    warnings_that(key, "released before the body of its response")
}

fn warnings_of_an_upgrade(key: &str) -> usize {
    warnings_that(
        key,
        "released with the response that upgrades the connection",
    )
}

fn warnings_that(key: &str, says: &str) -> usize {
    let (text, key) = (log().text(), format!("key={key}"));
    let is_meant = |line: &&str| line.contains(says) && line.ends_with(&key);
    text.lines().filter(is_meant).count()
}

async fn is_as_promised(site: &Site, returned: Returned) {
    log();
    with_a_bound(site, returned).await;
    without_a_bound(site, returned, "sized").await;
    without_a_bound(site, returned, "streamed").await;
}

async fn with_a_bound(site: &Site, returned: Returned) {
    let key = returned.key("bounded");
    what_is_complete_is_released(site, returned, "bounded").await;
    for body in ["sized", "streamed"] {
        let path = returned.path("bounded", body);
        let mut request = site.send(&path).await;
        request.begins_with(HEAD).await.expect("a head");
        assert!(site.app.try_hold(&key).await.is_none(), "{path}");
        site.app.finish.notify_one();
        request.begins_with(PIECE).await.expect("the body");
        drop(site.app.hold(&key).await);

        site.app.finish.notify_one();
        let response = site.get(&path).await;
        assert!(response.body.contains(PIECE), "{path}: {response:?}");
        let length = header(&response, "content-length");
        assert_eq!(length.is_some(), body == "sized", "{path}: {response:?}");
        drop(site.app.hold(&key).await);

        let mut request = site.send(&path).await;
        request.begins_with(HEAD).await.expect("a head");
        request.reset().expect("a connection");
        drop(site.app.hold(&key).await);
        a_head_needs_no_lock(site, returned, body).await;
    }
    assert_eq!(warnings(&key), 0, "{}", log().text());
}

async fn a_head_needs_no_lock(site: &Site, returned: Returned, body: &str) {
    let (key, path) = (returned.key("bounded"), returned.path("bounded", body));
    site.app.has_begun.store(false, Relaxed);
    let mut request = site.send_as("HEAD", &path).await;
    request.begins_with(HEAD).await.expect("a head");
    if !returned.sees_the_method {
        site.app.finish.notify_one();
    }
    drop(site.app.hold(&key).await);
    let is_unread =
        returned.sees_the_method && (body == "streamed" || returned.framework == "actix");
    let has_begun = site.app.has_begun.load(Relaxed);
    assert!(
        !(is_unread && has_begun),
        "{path}: nothing of the body is made"
    );
}

async fn without_a_bound(site: &Site, returned: Returned, body: &str) {
    let (key, path) = (returned.key(body), returned.path(body, body));
    what_is_complete_is_released(site, returned, body).await;
    assert_eq!(warnings(&key), 0, "{}", log().text());
    for _ in 0..2 {
        let mut request = site.send(&path).await;
        request.begins_with(HEAD).await.expect("a head");
        let taken = tokio::time::timeout(SOON, site.app.hold(&key)).await;
        drop(taken.expect("it is free before the response has been sent"));
        site.app.finish.notify_one();
        request.begins_with(PIECE).await.expect("the body");
    }
    assert_eq!(warnings(&key), 1, "{path}: {}", log().text());
}

async fn what_is_complete_is_released(site: &Site, returned: Returned, variant: &str) {
    for (body, status) in [("buffered", 200), ("failed", 404)] {
        let path = returned.path(variant, body);
        let response = site.get(&path).await;
        assert_eq!(response.status, status, "{path}: {response:?}");
        assert!(response.body.contains(body), "{path}: {response:?}");
        drop(site.app.hold(&returned.key(variant)).await);

        let mut request = site.send_as("HEAD", &path).await;
        request.begins_with(HEAD).await.expect("a head");
        drop(site.app.hold(&returned.key(variant)).await);
        assert_eq!(request.rest().await, "", "{path}: a head has no body");
    }
}
