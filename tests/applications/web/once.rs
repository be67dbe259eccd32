//! Handlers that run once and answer each repeat with the response of the first body.
//!
//! Each framework is a module with a `start(app: App) -> String`, which returns the url of a server. Its route `/{kind}` runs
//! [`App::response`] once for each header `Idempotency-Key`, with the body of the request as the fingerprint.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
};

use axum::{body::Bytes, http};
use http_body::{Frame, SizeHint};
use lock_core::{LockManager, OnceOptions};
use lock_tests::{HttpRequest, HttpResponse, RedisServer, SECOND};

use super::{END, assert_problem, header};

const REPLAYED: &str = "idempotent-replayed";

/// The size of the largest result that is stored.
const LARGEST: usize = 64 * 1024;

#[derive(Clone, Debug)]
struct App {
    locks: LockManager,
    bodies: Arc<AtomicUsize>,
}

impl App {
    fn options(about: &str) -> OnceOptions {
        OnceOptions::keep(SECOND * 60).fingerprint(about)
    }

    /// Returns the response of a handler's body.
    async fn response(&self, kind: &str) -> http::Response<Pieces> {
        let run = self.bodies.fetch_add(1, SeqCst) + 1;
        tokio::task::yield_now().await;
        let response = http::Response::builder()
            .header("content-type", "text/plain; charset=utf-8")
            .header("set-cookie", "session=secret")
            .header("x-request-id", run);
        let (status, pieces) = match kind {
            "failed" => (400, vec!["failed".into()]),
            "binary" => (200, vec![binary().into()]),
            "small" => (200, vec![vec![b'x'; LARGEST - 200].into()]),
            "large" => (200, vec![vec![b'x'; LARGEST + 1].into()]),
            "empty" => (204, Vec::new()),
            "streamed" | "sized" => (200, vec!["first".into(), "last".into()]),
            _ => (201, vec![format!("run {run}").into()]),
        };
        let response = response
            .status(status)
            .header("location", "/payments/7")
            .header("link", "</first>; rel=first")
            .header("link", "</last>; rel=last");
        let pieces = Pieces {
            has_size: kind != "streamed",
            pieces,
        };
        response.body(pieces).expect("a response")
    }
}

/// Returns all bytes, some of which are not text.
fn binary() -> Vec<u8> {
    (0..=u8::MAX).cycle().take(1000).collect()
}

/// A body that is complete if it has a size and at most one piece.
struct Pieces {
    has_size: bool,
    pieces: Vec<Bytes>,
}

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let is_there = !self.pieces.is_empty();
        Poll::Ready(is_there.then(|| Ok(Frame::data(self.pieces.remove(0)))))
    }

    fn is_end_stream(&self) -> bool {
        self.pieces.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        let size: usize = self.pieces.iter().map(Bytes::len).sum();
        if self.has_size {
            SizeHint::with_exact(size as u64)
        } else {
            SizeHint::default()
        }
    }
}

/// Two servers with the same Redis, like two processes.
struct Sites {
    urls: [String; 2],
    bodies: Arc<AtomicUsize>,
    _redis: RedisServer,
}

impl Sites {
    async fn send(&self, at: usize, kind: &str, keys: &[&str], about: &str) -> HttpRequest {
        let keys: Vec<_> = keys
            .iter()
            .map(|key| format!("Idempotency-Key: {key}"))
            .collect();
        let keys: Vec<_> = keys.iter().map(String::as_str).collect();
        let url = format!("{}/{kind}", self.urls[at]);
        let sent = HttpRequest::send_with("POST", &url, &keys, about).await;
        sent.expect("a listening server")
    }

    async fn ask(&self, at: usize, kind: &str) -> HttpResponse {
        self.ask_about(at, kind, "{}").await
    }

    async fn ask_about(&self, at: usize, kind: &str, about: &str) -> HttpResponse {
        let request = self.send(at, kind, &["key"], about).await;
        request.response().await.expect("a response")
    }

    fn bodies(&self) -> usize {
        self.bodies.load(SeqCst)
    }
}

/// Makes a test of each claim in a module of a framework.
macro_rules! once_claims {
    () => {
        once_claims! {
            a_repeat_gets_the_response_with_a_mark_and_without_cookies
            a_binary_body_is_repeated_byte_for_byte
            a_response_that_cannot_be_stored_makes_repeats_a_conflict
        }
    };
    ($($claim:ident)+) => {
        $(
            #[tokio::test]
            async fn $claim() {
                let redis = lock_tests::RedisServer::start();
                let bodies = std::sync::Arc::default();
                let mut urls = Vec::new();
                for _ in 0..2 {
                    let locks = lock_tests::connect(&redis.url()).await;
                    let bodies = std::sync::Arc::clone(&bodies);
                    urls.push(start(super::App { locks, bodies }).await);
                }
                let urls = urls.try_into().expect("two");
                super::$claim(&super::Sites { urls, bodies, _redis: redis }).await;
            }
        )+
    };
}
mod axum_;
mod poem_;

async fn a_repeat_gets_the_response_with_a_mark_and_without_cookies(sites: &Sites) {
    let first = sites.ask(0, "created").await;
    assert_eq!((first.status, first.body.as_str()), (201, "run 1"));
    assert!(header(&first, "set-cookie").is_some(), "{first:?}");
    assert!(header(&first, "x-request-id").is_some(), "{first:?}");
    assert_eq!(header(&first, REPLAYED), None);
    for at in [0, 1, 1] {
        let repeat = sites.ask(at, "created").await;
        assert_eq!((repeat.status, repeat.body.as_str()), (201, "run 1"));
        for name in ["content-type", "location"] {
            assert_eq!(header(&repeat, name), header(&first, name));
        }
        assert_eq!(links(&repeat), links(&first));
        assert_eq!(links(&repeat).len(), 2, "{repeat:?}");
        assert_eq!(header(&repeat, REPLAYED).as_deref(), Some("true"));
        for name in ["set-cookie", "x-request-id"] {
            assert_eq!(header(&repeat, name), None, "{repeat:?}");
        }
    }
    assert_eq!(sites.ask(0, "empty").await.status, 204);
    let repeat = sites.ask(1, "empty").await;
    assert_eq!((repeat.status, repeat.body.as_str()), (204, ""));
    assert_eq!(sites.bodies(), 2);
}

fn links(response: &HttpResponse) -> Vec<&str> {
    let lines = response.head.lines();
    lines.filter(|line| line.starts_with("link: ")).collect()
}

async fn a_binary_body_is_repeated_byte_for_byte(sites: &Sites) {
    for at in [0, 1] {
        let request = sites.send(at, "binary", &["key"], "").await;
        let response = request.bytes().await;
        assert!(response.ends_with(&binary()), "{at}");
    }
    assert_eq!(sites.bodies(), 1);
}

async fn a_response_that_cannot_be_stored_makes_repeats_a_conflict(sites: &Sites) {
    for (kind, body) in [
        ("large", "x".repeat(LARGEST + 1)),
        ("sized", "firstlast".to_owned()),
        ("streamed", format!("5\r\nfirst\r\n4\r\nlast\r\n{END}")),
    ] {
        let first = sites.ask(0, kind).await;
        assert_eq!(first.status, 200, "{kind}");
        assert!(first.body == body, "{kind}: {} bytes", first.body.len());
        for at in [0, 1] {
            let repeat = sites.ask(at, kind).await;
            assert_problem(&repeat, 409, "Conflict");
            assert_eq!(header(&repeat, "retry-after"), None, "{repeat:?}");
        }
    }
    assert_eq!(sites.bodies(), 3);
    let [small, repeat] = [sites.ask(0, "small").await, sites.ask(1, "small").await];
    assert!(small.body == repeat.body, "{} bytes", repeat.body.len());
    assert_eq!(sites.bodies(), 4);
}

/// The extractor of axum makes this response.
async fn a_response_to_a_request_without_a_readable_key_says_what_to_send(sites: &Sites) {
    let long = "x".repeat(256);
    for keys in [&[][..], &[""], &["a b"], &["\"a"], &[&long], &["a", "a"]] {
        let request = sites.send(0, "created", keys, "").await;
        let response = request.response().await.expect("a response");
        assert_problem(&response, 400, "Bad Request");
        assert!(response.body.contains("Idempotency-Key"), "{response:?}");
    }
    assert_eq!(sites.bodies(), 0);
    for key in ["a", "\"a\""] {
        let request = sites.send(0, "created", &[key], "").await;
        let response = request.response().await.expect("a response");
        assert_eq!((response.status, response.body.as_str()), (201, "run 1"));
    }
}
