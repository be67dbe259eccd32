//! Impl into response with a response that cannot fail, like a framework's with its feature off, or of another version.
// error: the response of this `impl IntoResponse` cannot represent a lock failure
// at: IntoResponse
// note: becomes a `Response`, which does not implement `FromLockError`
// note: switch on the feature of `lock-core` that bears the name of the framework: `axum` (for axum 0.8, with axum-core 0.5) or `poem` (for poem 3)
// note: if it is on, the program may have another version of the framework, too: `cargo tree -d` shows whether it has two

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
