//! A return type that never comes.
// error: a function that never returns cannot report a failed lock
// at: !

use lock_core::distributed_lock;

#[distributed_lock(key = "order")]
async fn f() -> ! {
    loop {
        tokio::task::yield_now().await;
    }
}
