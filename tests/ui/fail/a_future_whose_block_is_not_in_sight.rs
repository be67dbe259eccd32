//! A future with a block that is not in sight.
// error: the `async` block of this future is not visible
// at: impl std::future::Future<Output = Result<(), LockError>>

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order")]
fn f() -> impl std::future::Future<Output = Result<(), LockError>> {
    g()
}
async fn g() -> Result<(), LockError> {
    Ok(())
}
