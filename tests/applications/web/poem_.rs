//! poem. A request continues after its client has closed the connection, and ends when the connection is reset. A
//! failed body of unknown length looks complete to its client, since poem drives a connection once more after its
//! failure.

use std::io;

use futures_util::TryStreamExt as _;
use lock_core::{LockError, LockOptions, distributed_lock};
use poem::{
    Body, EndpointExt as _, IntoResponse, Response, Route, get, handler,
    http::StatusCode,
    web::{Data, Path},
};

use super::{App, Site, pieces, serving};

test_claims!();
test_claims! {
    a_client_that_resets_the_connection_releases_the_lock_at_once
    a_client_that_resets_the_connection_ends_the_stream_and_its_lock
    a_response_ends_with_the_lease_of_its_function
}

async fn start(app: App) -> Site {
    let routes = Route::new()
        .at("/result/:id", get(result))
        .at("/response/:id", get(response))
        .at("/opaque/:id", get(opaque))
        .at("/error/:id", get(as_error))
        .at("/mute/:id", get(mute))
        .at("/locked/:id", get(locked))
        .at("/hang/:id", get(hang))
        .at("/stream/:id", get(stream))
        .at("/sent/:id", get(sent))
        .data(app.clone());
    let url = serving::poem(routes).await;
    Site { url, app }
}

#[handler]
#[distributed_lock(key = "order:{id}", wait = "0s", locks = app.locks)]
async fn result(Data(app): Data<&App>, Path(id): Path<u64>) -> Result<String, LockError> {
    Ok(format!("order {id}"))
}

#[distributed_lock(key = "order:{id}", wait = "0s", locks = app.locks)]
#[handler]
async fn response(app: Data<&App>, Path(id): Path<u64>) -> Response {
    format!("order {id}").into_response()
}

#[handler]
#[distributed_lock(key = "order:{id}", wait = "0s", locks = app.locks)]
async fn opaque(Data(app): Data<&App>, Path(id): Path<u64>) -> impl IntoResponse {
    if id == 0 {
        return (StatusCode::NOT_FOUND, String::new());
    }
    (StatusCode::OK, format!("order {id}"))
}

#[distributed_lock(key = "order:{id}", wait = "0s", locks = app.locks)]
#[handler]
async fn as_error(app: Data<&App>, Path(id): Path<u64>) -> poem::Result<impl IntoResponse> {
    Ok(format!("order {id}"))
}

#[handler]
#[distributed_lock(key = "order:{id}", wait = "0s", locks = app.locks)]
async fn mute(Data(app): Data<&App>, Path(id): Path<u64>) -> (StatusCode, String) {
    (StatusCode::OK, format!("order {id}"))
}

#[handler]
#[distributed_lock(
    key = "order:{id}", wait = "0s", locks = app.locks,
    on_error = |error| (StatusCode::LOCKED, error.is_busy().to_string()),
)]
async fn locked(Data(app): Data<&App>, Path(id): Path<u64>) -> impl IntoResponse {
    format!("order {id}")
}

#[handler]
#[distributed_lock(key = "order:{id}", locks = app.locks)]
async fn hang(Data(app): Data<&App>, Path(id): Path<u64>) -> Response {
    std::future::pending().await
}

#[handler]
async fn stream(Data(app): Data<&App>, Path(id): Path<u64>) -> poem::Result<Body> {
    let guard = app
        .locks
        .acquire(format!("order:{id}"), LockOptions::default())
        .await?;
    let pieces = pieces(app.clone()).map_err(io::Error::other);
    Ok(Body::from_bytes_stream(guard.hold_during(pieces)))
}

#[handler]
#[distributed_lock(key = "order:{id}", max_hold = "60s", locks = app.locks)]
async fn sent(Data(app): Data<&App>, Path(id): Path<u64>) -> impl IntoResponse {
    Body::from_bytes_stream(pieces(app.clone()).map_err(io::Error::other))
}
