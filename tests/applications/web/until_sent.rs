//! How long a locked handler keeps its lock, and when it warns: for each framework, return type and kind of body, with
//! `max_hold` and without.
//!
//! A complete response releases the lock when the handler returns. Any other response keeps it until it has been sent, if `max_hold`
//! bounds that time. Otherwise, one warning is logged for each template.

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

/// A return type, with routes `/{name}/{variant}/{body}` and keys `{framework}:{name}:{variant}`. The variant `bounded` has a
/// `max_hold`, but `sized` and `streamed` do not.
#[derive(Clone, Copy, Debug)]
struct Returned {
    framework: &'static str,
    name: &'static str,
    /// Whether the integration knows that a request is a HEAD, and drops the body, which is not sent.
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

/// Returns a stream of one piece, which is ready when the test says so.
fn piece(app: &App) -> impl Stream<Item = io::Result<Bytes>> + Send + Sync + 'static {
    let app = app.clone();
    stream::once(async move {
        app.has_begun.store(true, Relaxed);
        app.finish.notified().await;
        Ok(Bytes::from_static(PIECE.as_bytes()))
    })
}

/// A body that has a size although it is made while it is sent.
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

/// The warnings of this process.
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

/// Installs the log, which must precede the first warning.
fn install_log() {
    LazyLock::force(&LOG);
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
    let (text, key) = (LOG.text(), format!("key={key}"));
    let is_meant = |line: &&str| line.contains(says) && line.ends_with(&key);
    text.lines().filter(is_meant).count()
}

async fn assert_held_until_sent_or_warns(site: &Site, returned: Returned) {
    install_log();
    with_a_bound(site, returned).await;
    without_a_bound(site, returned, "sized").await;
    without_a_bound(site, returned, "streamed").await;
}

async fn with_a_bound(site: &Site, returned: Returned) {
    let key = returned.key("bounded");
    complete_responses_release_the_lock(site, returned, "bounded").await;
    for body in ["sized", "streamed"] {
        let path = returned.path("bounded", body);
        let mut request = site.send(&path).await;
        request.read_until(HEAD).await.expect("a head");
        assert!(site.app.try_hold(&key).await.is_none(), "{path}");
        site.app.finish.notify_one();
        request.read_until(PIECE).await.expect("the body");
        drop(site.app.hold(&key).await);

        site.app.finish.notify_one();
        let response = site.get(&path).await;
        assert!(response.body.contains(PIECE), "{path}: {response:?}");
        let length = header(&response, "content-length");
        assert_eq!(length.is_some(), body == "sized", "{path}: {response:?}");
        drop(site.app.hold(&key).await);

        let mut request = site.send(&path).await;
        request.read_until(HEAD).await.expect("a head");
        request.reset().expect("a connection");
        drop(site.app.hold(&key).await);
        a_head_releases_the_lock(site, returned, body).await;
    }
    assert_eq!(warnings(&key), 0, "{}", LOG.text());
}

async fn a_head_releases_the_lock(site: &Site, returned: Returned, body: &str) {
    let (key, path) = (returned.key("bounded"), returned.path("bounded", body));
    site.app.has_begun.store(false, Relaxed);
    let mut request = site.send_as("HEAD", &path).await;
    request.read_until(HEAD).await.expect("a head");
    if !returned.sees_the_method {
        site.app.finish.notify_one();
    }
    drop(site.app.hold(&key).await);
    let is_unread =
        returned.sees_the_method && (body == "streamed" || returned.framework == "actix");
    let has_begun = site.app.has_begun.load(Relaxed);
    assert!(
        !(is_unread && has_begun),
        "{path}: no piece of the body is requested"
    );
}

async fn without_a_bound(site: &Site, returned: Returned, body: &str) {
    let (key, path) = (returned.key(body), returned.path(body, body));
    complete_responses_release_the_lock(site, returned, body).await;
    assert_eq!(warnings(&key), 0, "{}", LOG.text());
    for _ in 0..2 {
        let mut request = site.send(&path).await;
        request.read_until(HEAD).await.expect("a head");
        let taken = tokio::time::timeout(SOON, site.app.hold(&key)).await;
        drop(taken.expect("it is free before the response has been sent"));
        site.app.finish.notify_one();
        request.read_until(PIECE).await.expect("the body");
    }
    assert_eq!(warnings(&key), 1, "{path}: {}", LOG.text());
}

async fn complete_responses_release_the_lock(site: &Site, returned: Returned, variant: &str) {
    for (body, status) in [("buffered", 200), ("failed", 404)] {
        let path = returned.path(variant, body);
        let response = site.get(&path).await;
        assert_eq!(response.status, status, "{path}: {response:?}");
        assert!(response.body.contains(body), "{path}: {response:?}");
        drop(site.app.hold(&returned.key(variant)).await);

        let mut request = site.send_as("HEAD", &path).await;
        request.read_until(HEAD).await.expect("a head");
        drop(site.app.hold(&returned.key(variant)).await);
        assert_eq!(request.rest().await, "", "{path}: a head has no body");
    }
}
