//! Impl into response without the feature.
// error: a failed lock cannot become an `impl Trait`
// at: impl IntoResponse

use lock_core::distributed_lock;

#[distributed_lock(key = "order")]
async fn f() -> impl IntoResponse {
    1
}
trait IntoResponse {}
impl IntoResponse for i32 {}
