//! `impl IntoResponse` of a framework whose response cannot represent a failure: its feature is off, or it has another version.
// error: the response of this `impl IntoResponse` cannot represent a lock failure
// at: IntoResponse
// note: becomes a `Response`, which does not implement `FromLockError`
// note: enable the feature of `lock-core` with the name of the framework: `axum` (for axum 0.8, with axum-core 0.5) or `poem` (for poem 3)
// note: if it is enabled, the program may have two versions of the framework: check with `cargo tree -d`

use lock_core::distributed_lock;

/// A response.
pub struct Response;

/// A framework's trait.
pub trait IntoResponse {
    /// Makes the response.
    fn into_response(self) -> Response;
}
impl IntoResponse for i32 {
    fn into_response(self) -> Response {
        Response
    }
}
impl IntoResponse for Response {
    fn into_response(self) -> Response {
        self
    }
}

#[distributed_lock(key = "order")]
async fn f() -> impl IntoResponse {
    1
}
