//! Handlers that run once.
use axum::response::{IntoResponse, Response};
use lock_core::{LockError, run_once};

/// Any response.
#[run_once(key = "axum:{id}", keep = "24h", fingerprint = body)]
pub async fn any(id: u64, body: String) -> impl IntoResponse {
    if id == 0 {
        return (axum::http::StatusCode::NOT_FOUND, body);
    }
    tokio::task::yield_now().await;
    (axum::http::StatusCode::OK, body)
}

/// Any response, or an error.
///
/// # Errors
///
/// If the lock fails.
#[run_once(key = "axum:{id}", keep = "24h", on_drop = cancel)]
pub async fn any_in_result(id: &u64) -> Result<impl IntoResponse, LockError> {
    Ok(id.to_string())
}

/// A response.
#[run_once(key = "axum", keep = "24h", on_error = IntoResponse::into_response)]
pub async fn response() -> Response {
    "text".into_response()
}

/// A response, or an error.
///
/// # Errors
///
/// If the lock fails.
#[run_once(key = "axum:{id}", keep = "24h")]
pub async fn response_in_result(id: u8) -> Result<Response, LockError> {
    let _ = id;
    Ok("text".into_response())
}

/// The same for poem.
///
/// # Errors
///
/// If the lock fails.
#[run_once(key = "poem", keep = "24h")]
pub async fn poem() -> Result<poem::Response, poem::Error> {
    Ok(poem::IntoResponse::into_response("text"))
}

/// Any response of poem.
#[run_once(key = "poem", keep = "24h")]
pub async fn any_of_poem() -> impl poem::IntoResponse {
    "text"
}

fn assert_send<T: Send>(_: T) {}

/// The futures can be spawned.
pub fn spawned(id: &u64) {
    assert_send(any(1, String::new()));
    assert_send(any_in_result(id));
    assert_send(response());
    assert_send(response_in_result(1));
    assert_send(poem());
    assert_send(any_of_poem());
}
