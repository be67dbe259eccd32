//! Impl into response, of two frameworks.
#![allow(clippy::missing_errors_doc, clippy::manual_async_fn)]

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use lock_core::{LockError, LockManager, distributed_lock};

/// The response of the example.
#[derive(Clone, Debug)]
pub struct App {
    locks: LockManager,
}

/// One line.
#[distributed_lock(key = "order")]
pub async fn text() -> impl IntoResponse {
    "ok"
}

/// Nothing.
#[distributed_lock(key = "order")]
pub async fn nothing() -> impl IntoResponse {}

/// With returns in the middle.
#[distributed_lock(key = "order:{id}", locks = app.locks)]
pub async fn early(State(app): State<App>, id: u64) -> impl IntoResponse {
    if id > 7 {
        return (StatusCode::NOT_FOUND, Json(String::new()));
    }
    for n in 0..id {
        if n > 3 {
            return (StatusCode::OK, Json("early".to_owned()));
        }
    }
    (StatusCode::OK, Json(id.to_string()))
}

/// With the type that the tail needs.
#[distributed_lock(key = "order:{id}", ttl = "1s", lease = lease)]
pub async fn question(id: u64) -> impl axum::response::IntoResponse + Send + use<> {
    let parsed: u64 = id.to_string().parse().map_err(|_| StatusCode::BAD_REQUEST)?;
    Ok::<_, StatusCode>((parsed + u64::from(lease.fencing_token())).to_string())
}

/// In a result, which needs no help.
#[distributed_lock(key = "order:{id}")]
pub async fn result(id: u64) -> Result<impl IntoResponse, LockError> {
    if id > 2 {
        return Ok(String::new());
    }
    Ok(id.to_string())
}

/// In the framework's result.
#[distributed_lock(key = "order:{id}")]
pub async fn frameworks_result(id: u64) -> axum::response::Result<impl IntoResponse> {
    let text = std::str::from_utf8(&[]).map_err(|_| StatusCode::BAD_REQUEST)?;
    Ok((StatusCode::CREATED, text.len().to_string(), [("id", id.to_string())]).1)
}

/// With the framework's response as the error.
#[distributed_lock(key = "order")]
pub async fn response_as_error() -> Result<&'static str, Response> {
    Ok("ok")
}

/// Types that hold a response already.
#[distributed_lock(key = "order")]
pub async fn response() -> Response {
    "ok".into_response()
}

/// A status.
#[distributed_lock(key = "order")]
pub async fn status() -> StatusCode {
    StatusCode::OK
}

/// A status with a text.
#[distributed_lock(key = "order")]
pub async fn status_and_text() -> (StatusCode, String) {
    (StatusCode::OK, String::new())
}

/// Another response for a lock that is busy, of another type than the body's.
#[distributed_lock(key = "order", on_error = |error| (StatusCode::LOCKED, error.to_string()))]
pub async fn on_error() -> impl IntoResponse {
    Json(1)
}

/// The value that means skipped is the body's own.
#[distributed_lock(key = "order", on_busy = skip)]
pub async fn skip() -> impl IntoResponse {
    Ok::<(), LockError>(())
}

/// In a trait.
pub trait Pages {
    /// A page.
    fn page(&self, id: &str) -> impl Future<Output = impl IntoResponse>;
}

impl Pages for App {
    #[distributed_lock(key = "page:{id}", locks = self.locks)]
    async fn page(&self, id: &str) -> impl IntoResponse {
        id.to_owned()
    }
}

/// As a future.
#[distributed_lock(key = "order:{id}")]
pub fn future(id: u64) -> impl Future<Output = impl IntoResponse> + Send {
    async move { id.to_string() }
}

macro_rules! handler {
    ($name:ident -> $returned:ty, $value:expr) => {
        /// From a macro.
        #[distributed_lock(key = "order")]
        pub async fn $name() -> $returned {
            $value
        }
    };
}
handler!(from_a_macro -> impl IntoResponse, "ok");

/// Poem's.
pub mod poem_handlers {
    use lock_core::{LockError, distributed_lock};
    use poem::{IntoResponse, Response, web::Json};

    /// Json.
    #[distributed_lock(key = "order")]
    pub async fn json() -> impl IntoResponse {
        Json(1)
    }

    /// In poem's result.
    #[distributed_lock(key = "order")]
    pub async fn result() -> poem::Result<impl IntoResponse> {
        Ok("ok")
    }

    /// In a result with a response.
    #[distributed_lock(key = "order")]
    pub async fn response() -> Result<&'static str, Response> {
        Ok("ok")
    }

    /// In a result.
    #[distributed_lock(key = "order")]
    pub async fn own() -> Result<impl IntoResponse, LockError> {
        Ok("ok")
    }
}

fn is_send<T: Send>(value: T) -> T {
    value
}

/// Checks the bounds that a router demands.
pub fn all(app: App) {
    drop(is_send(text()));
    drop(is_send(early(State(app), 1)));
    drop(is_send(question(1)));
    drop(is_send(on_error()));
    drop(axum::Router::<App>::new().route("/", axum::routing::get(text).put(nothing)));
}
