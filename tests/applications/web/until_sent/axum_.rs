//! The handlers of axum.

use axum::{
    Router,
    body::Body,
    extract::{Path, State, WebSocketUpgrade},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::get,
};
use lock_core::{LockOptions, distributed_lock};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::{
    super::serving, App, LOG, Refused, Returned, Site, WithSize, answered,
    assert_held_until_sent_or_warns, install_log, piece, warnings, warnings_of_an_upgrade,
};

/// An alias, which hides the response from the attribute.
type Reply = Response;

type Answered = Result<Response, Refused>;

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (self.0, "failed").into_response()
    }
}

fn body(app: &App, kind: &str) -> Body {
    match kind {
        "sized" => Body::new(WithSize(Box::pin(piece(app)))),
        "streamed" => Body::from_stream(piece(app)),
        text => Body::from(text.to_owned()),
    }
}

fn with_status(app: &App, kind: &str) -> (StatusCode, Body) {
    let status = match kind {
        "failed" => StatusCode::NOT_FOUND,
        _ => StatusCode::OK,
    };
    (status, body(app, kind))
}

fn response(app: &App, kind: &str) -> Response {
    with_status(app, kind).into_response()
}

fn result(app: &App, kind: &str) -> Answered {
    answered(app, kind, StatusCode::NOT_FOUND, response)
}

fn opaque_result(app: &App, kind: &str) -> Result<(StatusCode, Body), Refused> {
    answered(app, kind, StatusCode::NOT_FOUND, with_status)
}

/// Defines the three handlers of a return type, and their test.
macro_rules! returned {
    ($name:ident [$bounded:literal $sized:literal $streamed:literal] -> $returned:ty = $make:path $(; $on_error:expr)?) => {
        mod $name {
            use super::*;

            #[distributed_lock(key = $bounded, max_hold = "60s", locks = app.locks $(, on_error = $on_error)?)]
            async fn bounded(State(app): State<App>, Path(kind): Path<String>) -> $returned {
                $make(&app, &kind)
            }

            #[distributed_lock(key = $sized, locks = app.locks $(, on_error = $on_error)?)]
            async fn sized(State(app): State<App>, Path(kind): Path<String>) -> $returned {
                $make(&app, &kind)
            }

            #[distributed_lock(key = $streamed, locks = app.locks $(, on_error = $on_error)?)]
            async fn streamed(State(app): State<App>, Path(kind): Path<String>) -> $returned {
                $make(&app, &kind)
            }

            #[tokio::test]
            async fn keeps_its_lock_until_it_has_been_sent_or_warns() {
                let routes = Router::new()
                    .route(concat!("/", stringify!($name), "/bounded/{kind}"), get(bounded))
                    .route(concat!("/", stringify!($name), "/sized/{kind}"), get(sized))
                    .route(concat!("/", stringify!($name), "/streamed/{kind}"), get(streamed));
                let returned = Returned {
                    framework: "axum",
                    name: stringify!($name),
                    sees_the_method: true,
                };
                assert_held_until_sent_or_warns(&start(routes).await, returned).await;
            }
        }
    };
}

returned!(opaque ["axum:opaque:bounded" "axum:opaque:sized" "axum:opaque:streamed"]
    -> impl IntoResponse = with_status);
returned!(opaque_in_a_result ["axum:opaque_in_a_result:bounded" "axum:opaque_in_a_result:sized" "axum:opaque_in_a_result:streamed"]
    -> Result<impl IntoResponse, Refused> = opaque_result);
returned!(alias ["axum:alias:bounded" "axum:alias:sized" "axum:alias:streamed"]
    -> Reply = response);
returned!(alias_of_a_result ["axum:alias_of_a_result:bounded" "axum:alias_of_a_result:sized" "axum:alias_of_a_result:streamed"]
    -> Answered = result);
returned!(status_and_body ["axum:status_and_body:bounded" "axum:status_and_body:sized" "axum:status_and_body:streamed"]
    -> (StatusCode, Body) = with_status; |error| (error.into(), Body::empty()));

/// A body that continues without its lease cannot end with it.
#[tokio::test]
async fn a_function_that_continues_after_a_loss_does_not_keep_its_lock_and_warns() {
    #[distributed_lock(key = "axum:continues", max_hold = "60s", on_lost = continue, locks = app.locks)]
    async fn continues(app: &App) -> Response {
        response(app, "streamed")
    }

    install_log();
    let app = App::in_memory();
    let response = continues(&app).await;
    assert!(app.try_hold("axum:continues").await.is_some());
    assert_eq!(warnings("axum:continues"), 1, "{}", LOG.text());
    drop(response);
}

/// The lock of a handler does not protect the web socket that it opens. The socket acquires its own lock for as long as it is open.
#[tokio::test]
async fn a_web_socket_is_not_protected_by_its_handler_but_by_its_own_lock() {
    #[distributed_lock(key = "axum:upgraded", max_hold = "60s", locks = app.locks)]
    async fn upgraded(State(app): State<App>, upgrade: WebSocketUpgrade) -> impl IntoResponse {
        upgrade.on_upgrade(async move |mut socket| {
            let options = LockOptions::default();
            let until_it_is_closed = async |_| while let Some(Ok(_)) = socket.recv().await {};
            let ran = app.locks.run("axum:own", options, until_it_is_closed).await;
            ran.expect("free");
        })
    }

    install_log();
    let site = start(Router::new().route("/upgraded", get(upgraded))).await;
    // Two sockets, but one warning, as for every template.
    for _ in 0..2 {
        let socket = open_web_socket(&site).await;
        assert!(site.app.try_hold("axum:upgraded").await.is_some());
        site.app.held("axum:own").await;
        drop(socket);
        drop(site.app.hold("axum:own").await);
    }
    assert_eq!(warnings_of_an_upgrade("axum:upgraded"), 1, "{}", LOG.text());
    assert_eq!(warnings("axum:upgraded"), 0, "{}", LOG.text());
}

/// Returns the connection after the response to the upgrade.
async fn open_web_socket(site: &Site) -> TcpStream {
    let address = site.url.strip_prefix("http://").expect("a url");
    let mut socket = TcpStream::connect(address).await.expect("a listener");
    let request = "GET /upgraded HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                   sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    socket.write_all(request.as_bytes()).await.expect("open");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(socket.read_u8().await.expect("a response"));
    }
    assert!(head.starts_with(b"HTTP/1.1 101"), "{}", head.escape_ascii());
    socket
}

async fn start(routes: Router<App>) -> Site {
    let app = App::in_memory();
    let url = serving::axum(routes.with_state(app.clone())).await;
    Site { url, app }
}
