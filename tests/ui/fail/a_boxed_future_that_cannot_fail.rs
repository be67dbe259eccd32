//! A boxed future that cannot fail.
// error: `u8` cannot represent a lock failure
// at: u8

use lock_core::distributed_lock;

#[distributed_lock(key = "order")]
fn f() -> std::pin::Pin<Box<dyn std::future::Future<Output = u8>>> {
    Box::pin(async move { 1 })
}
