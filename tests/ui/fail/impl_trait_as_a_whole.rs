//! Impl trait as a whole.
// error: a failed lock cannot become an `impl Trait`
// at: impl Sized

use lock_core::distributed_lock;

#[distributed_lock(key = "order")]
async fn f() -> impl Sized {
    1
}
