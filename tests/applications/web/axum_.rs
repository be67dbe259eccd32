//! axum.

use axum::{
    Router,
    body::Body,
    debug_handler,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::get,
};
use lock_core::{LockError, LockOptions, distributed_lock};

use super::{App, Site, pieces, serving};

test_claims!();
test_claims! {
    a_client_that_hangs_up_releases_the_lock_at_once
    a_client_that_hangs_up_ends_the_stream_and_its_lock
    a_reader_can_distinguish_a_loss_from_the_end
    a_response_ends_with_the_lease_of_its_function
}

async fn start(app: App) -> Site {
    let router = Router::new()
        .route("/result/{id}", get(result))
        .route("/response/{id}", get(response))
        .route("/opaque/{id}", get(opaque))
        .route("/error/{id}", get(as_error))
        .route("/mute/{id}", get(mute))
        .route("/locked/{id}", get(locked))
        .route("/hang/{id}", get(hang))
        .route("/stream/{id}", get(stream))
        .route("/sent/{id}", get(sent))
        .with_state(app.clone());
    let url = serving::axum(router).await;
    Site { url, app }
}

#[debug_handler]
#[distributed_lock(key = "order:{id}", wait = "0s", locks = app.locks)]
async fn result(State(app): State<App>, Path(id): Path<u64>) -> Result<String, LockError> {
    Ok(format!("order {id}"))
}

#[distributed_lock(key = "order:{id}", wait = "0s", locks = app.locks)]
#[debug_handler]
async fn response(State(app): State<App>, Path(id): Path<u64>) -> Response {
    format!("order {id}").into_response()
}

#[debug_handler]
#[distributed_lock(key = "order:{id}", wait = "0s", locks = app.locks)]
async fn opaque(State(app): State<App>, Path(id): Path<u64>) -> impl IntoResponse {
    if id == 0 {
        return (StatusCode::NOT_FOUND, String::new());
    }
    (StatusCode::OK, format!("order {id}"))
}

#[distributed_lock(key = "order:{id}", wait = "0s", locks = app.locks)]
#[debug_handler]
async fn as_error(
    State(app): State<App>,
    Path(id): Path<u64>,
) -> axum::response::Result<impl IntoResponse> {
    Ok(format!("order {id}"))
}

#[distributed_lock(key = "order:{id}", wait = "0s", locks = app.locks)]
async fn mute(State(app): State<App>, Path(id): Path<u64>) -> (StatusCode, String) {
    (StatusCode::OK, format!("order {id}"))
}

#[distributed_lock(
    key = "order:{id}", wait = "0s", locks = app.locks,
    on_error = |error| (StatusCode::LOCKED, error.is_busy().to_string()),
)]
async fn locked(State(app): State<App>, Path(id): Path<u64>) -> impl IntoResponse {
    format!("order {id}")
}

#[distributed_lock(key = "order:{id}", locks = app.locks)]
async fn hang(State(app): State<App>, Path(id): Path<u64>) -> Result<StatusCode, Response> {
    std::future::pending().await
}

async fn stream(State(app): State<App>, Path(id): Path<u64>) -> Result<Response, LockError> {
    let guard = app
        .locks
        .acquire(format!("order:{id}"), LockOptions::default())
        .await?;
    let body = guard.hold_during(pieces(app));
    Ok(Body::from_stream(body).into_response())
}

#[debug_handler]
#[distributed_lock(key = "order:{id}", max_hold = "60s", locks = app.locks)]
async fn sent(State(app): State<App>, Path(id): Path<u64>) -> impl IntoResponse {
    (StatusCode::OK, Body::from_stream(pieces(app)))
}

#[test]
fn a_locked_handler_is_as_small_as_any_locked_function() {
    let arguments = size_of::<(State<App>, Path<u64>)>();
    let future = opaque(State(App::in_memory()), Path(7));
    assert!(size_of_val(&future) <= arguments + 64);
}
