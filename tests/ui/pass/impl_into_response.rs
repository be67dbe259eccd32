//! `impl IntoResponse`. `applications/` compiles handlers of each framework.
#![allow(clippy::missing_errors_doc, clippy::manual_async_fn)]

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::IntoResponse,
};
use lock_core::{LockError, LockManager, distributed_lock};

/// The state of a service.
#[derive(Clone, Debug)]
pub struct App {
    locks: LockManager,
}

/// Returns early, from a loop, and at the end.
#[distributed_lock(key = "order:{id}", locks = app.locks)]
pub async fn early(State(app): State<App>, id: u64) -> impl IntoResponse {
    for n in 0..id {
        if n > 3 {
            return (StatusCode::OK, Json("early".to_owned()));
        }
    }
    (StatusCode::OK, Json(id.to_string()))
}

/// Uses `?`, whose type the tail decides.
#[distributed_lock(key = "order:{id}", ttl = "1s", lease = lease)]
pub async fn question(id: u64) -> impl axum::response::IntoResponse + Send + use<> {
    let parsed: u64 = id.to_string().parse().map_err(|_| StatusCode::BAD_REQUEST)?;
    Ok::<_, StatusCode>((parsed + u64::from(lease.fencing_token())).to_string())
}

/// Returns any response in the framework's result.
#[distributed_lock(key = "order:{id}")]
pub async fn in_the_frameworks_result(id: u64) -> axum::response::Result<impl IntoResponse> {
    let text = std::str::from_utf8(&[]).map_err(|_| StatusCode::BAD_REQUEST)?;
    Ok((StatusCode::CREATED, text.len().to_string(), [("id", id.to_string())]).1)
}

/// Answers a busy lock by a value of another type than the body's.
#[distributed_lock(key = "order", on_error = |error| (StatusCode::LOCKED, error.to_string()))]
pub async fn on_error() -> impl IntoResponse {
    Json(1)
}

/// Answers a busy lock by the body's value that means "skipped".
#[distributed_lock(key = "order", on_busy = skip)]
pub async fn skip() -> impl IntoResponse {
    Ok::<(), LockError>(())
}

/// A trait with such a method.
pub trait Pages {
    /// Returns a page.
    fn page(&self, id: &str) -> impl Future<Output = impl IntoResponse>;
}

impl Pages for App {
    #[distributed_lock(key = "page:{id}", locks = self.locks)]
    async fn page(&self, id: &str) -> impl IntoResponse {
        id.to_owned()
    }
}

/// Returns a future of any response.
#[distributed_lock(key = "order:{id}")]
pub fn future(id: u64) -> impl Future<Output = impl IntoResponse> + Send {
    async move { id.to_string() }
}

macro_rules! handler {
    ($name:ident -> $returned:ty, $value:expr) => {
        /// Is written by a macro.
        #[distributed_lock(key = "order")]
        pub async fn $name() -> $returned {
            $value
        }
    };
}
handler!(from_a_macro -> impl IntoResponse, "ok");

fn is_send<T: Send>(value: T) -> T {
    value
}

/// Checks the bounds that a router demands.
pub fn all(app: App) {
    drop(is_send(early(State(app), 1)));
    drop(is_send(question(1)));
    drop(is_send(on_error()));
    drop(axum::Router::<App>::new().route("/", axum::routing::put(skip)));
}
