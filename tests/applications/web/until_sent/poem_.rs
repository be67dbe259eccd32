//! The handlers of poem.

use http_body_util::combinators::BoxBody;
use lock_core::distributed_lock;
use poem::{
    Body, EndpointExt as _, IntoResponse, Response, Route, get, handler,
    http::StatusCode,
    web::{Data, Path},
};

use super::{
    super::serving, App, LOG, Refused, Returned, Site, WithSize, answered,
    assert_held_until_sent_or_warns, install_log, piece, warnings_of_an_upgrade,
};

/// An alias, which hides the response from the attribute.
type Reply = Response;

type Answered = Result<Response, Refused>;

impl From<Refused> for poem::Error {
    fn from(Refused(status): Refused) -> Self {
        Self::from_string("failed", status)
    }
}

fn body(app: &App, kind: &str) -> Body {
    match kind {
        "sized" => BoxBody::new(WithSize(Box::pin(piece(app)))).into(),
        "streamed" => Body::from_bytes_stream(piece(app)),
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

            #[handler]
            #[distributed_lock(key = $bounded, max_hold = "60s", locks = app.locks $(, on_error = $on_error)?)]
            async fn bounded(Data(app): Data<&App>, Path(kind): Path<String>) -> $returned {
                $make(app, &kind)
            }

            #[handler]
            #[distributed_lock(key = $sized, locks = app.locks $(, on_error = $on_error)?)]
            async fn sized(Data(app): Data<&App>, Path(kind): Path<String>) -> $returned {
                $make(app, &kind)
            }

            #[handler]
            #[distributed_lock(key = $streamed, locks = app.locks $(, on_error = $on_error)?)]
            async fn streamed(Data(app): Data<&App>, Path(kind): Path<String>) -> $returned {
                $make(app, &kind)
            }

            #[tokio::test]
            async fn keeps_its_lock_until_it_has_been_sent_or_warns() {
                let routes = Route::new()
                    .at(concat!("/", stringify!($name), "/bounded/:kind"), get(bounded).head(bounded))
                    .at(concat!("/", stringify!($name), "/sized/:kind"), get(sized))
                    .at(concat!("/", stringify!($name), "/streamed/:kind"), get(streamed));
                let returned = Returned {
                    framework: "poem",
                    name: stringify!($name),
                    sees_the_method: true,
                };
                assert_held_until_sent_or_warns(&start(routes).await, returned).await;
            }
        }
    };
}

returned!(opaque ["poem:opaque:bounded" "poem:opaque:sized" "poem:opaque:streamed"]
    -> impl IntoResponse = with_status);
returned!(opaque_in_a_result ["poem:opaque_in_a_result:bounded" "poem:opaque_in_a_result:sized" "poem:opaque_in_a_result:streamed"]
    -> Result<impl IntoResponse, Refused> = opaque_result);
returned!(alias ["poem:alias:bounded" "poem:alias:sized" "poem:alias:streamed"]
    -> Reply = response);
returned!(alias_of_a_result ["poem:alias_of_a_result:bounded" "poem:alias_of_a_result:sized" "poem:alias_of_a_result:streamed"]
    -> Answered = result);
returned!(status_and_body ["poem:status_and_body:bounded" "poem:status_and_body:sized" "poem:status_and_body:streamed"]
    -> (StatusCode, Body) = with_status; |error| (error.into(), Body::empty()));

/// As with poem's `WebSocket`, poem runs the upgraded connection in a separate task.
#[tokio::test]
async fn an_upgraded_connection_is_not_protected_and_warns() {
    #[distributed_lock(key = "poem:upgraded", max_hold = "60s", locks = app.locks)]
    async fn upgraded(app: &App) -> impl IntoResponse {
        StatusCode::SWITCHING_PROTOCOLS
    }

    install_log();
    let app = App::in_memory();
    for _ in 0..2 {
        let response = upgraded(&app).await.into_response();
        assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
        assert!(app.try_hold("poem:upgraded").await.is_some());
    }
    assert_eq!(warnings_of_an_upgrade("poem:upgraded"), 1, "{}", LOG.text());
}

async fn start(routes: Route) -> Site {
    let app = App::in_memory();
    let url = serving::poem(routes.data(app.clone())).await;
    Site { url, app }
}
