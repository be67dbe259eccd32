//! `impl IntoResponse` for a value that does not implement it.
// error: the trait bound `Mine: IntoResponse` is not satisfied
// at: IntoResponse

use axum::response::IntoResponse;
use lock_core::distributed_lock;

struct Mine;

#[distributed_lock(key = "order")]
async fn f() -> impl IntoResponse {
    Mine
}
