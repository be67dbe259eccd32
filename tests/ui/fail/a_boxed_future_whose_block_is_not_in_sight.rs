//! A boxed future with a block that is not in sight.
// error: the `async` block of this future is not visible
// at: std::pin::Pin<Box<dyn std::future::Future<Output = Result<(), LockError>>>>

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "order")]
fn f() -> std::pin::Pin<Box<dyn std::future::Future<Output = Result<(), LockError>>>> {
    let future = async { Ok(()) };
    Box::pin(future)
}
